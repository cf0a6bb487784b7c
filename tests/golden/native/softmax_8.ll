define void @kernel(ptr noalias %params, ptr noalias %values, i64 %first, i64 %last) {
entry:
  %t1 = getelementptr ptr, ptr %params, i64 0
  %t2 = load ptr, ptr %t1
  %t3 = getelementptr ptr, ptr %params, i64 1
  %t4 = load ptr, ptr %t3
  %t5 = alloca [24 x float], align 64
  br label %head6
head6:
  %i7 = phi i64 [ %first, %entry ], [ %t123, %after111 ]
  %t8 = icmp slt i64 %i7, %last
  br i1 %t8, label %body6, label %done6
body6:
  br label %head9
head9:
  %i10 = phi i64 [ 0, %body6 ], [ %t26, %done15 ]
  %c11 = phi <8 x float> [ splat (float 0xFFF0000000000000), %body6 ], [ %t25, %done15 ]
  %t12 = icmp slt i64 %i10, 24
  br i1 %t12, label %body9, label %done9
body9:
  %t13 = add i64 %i10, 256
  %t14 = call i64 @llvm.smin.i64(i64 %t13, i64 24)
  br label %head15
head15:
  %i16 = phi i64 [ %i10, %body9 ], [ %t24, %body15 ]
  %c17 = phi <8 x float> [ splat (float 0xFFF0000000000000), %body9 ], [ %t23, %body15 ]
  %t18 = icmp slt i64 %i16, %t14
  br i1 %t18, label %body15, label %done15
body15:
  %t19 = mul i64 %i7, 24
  %t20 = add i64 %t19, %i16
  %t21 = getelementptr float, ptr %t2, i64 %t20
  %t22 = load <8 x float>, ptr %t21, align 4
  %t23 = call <8 x float> @llvm.maximum.v8f32(<8 x float> %c17, <8 x float> %t22)
  %t24 = add nuw nsw i64 %i16, 8
  br label %head15
done15:
  %t25 = call <8 x float> @llvm.maximum.v8f32(<8 x float> %c11, <8 x float> %c17)
  %t26 = add nuw nsw i64 %i10, 256
  br label %head9
done9:
  %t27 = shufflevector <8 x float> %c11, <8 x float> poison, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 0, i32 0, i32 0, i32 0>
  %t28 = call <8 x float> @llvm.maximum.v8f32(<8 x float> %c11, <8 x float> %t27)
  %t29 = shufflevector <8 x float> %t28, <8 x float> poison, <8 x i32> <i32 2, i32 3, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t30 = call <8 x float> @llvm.maximum.v8f32(<8 x float> %t28, <8 x float> %t29)
  %t31 = shufflevector <8 x float> %t30, <8 x float> poison, <8 x i32> <i32 1, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t32 = call <8 x float> @llvm.maximum.v8f32(<8 x float> %t30, <8 x float> %t31)
  %t33 = extractelement <8 x float> %t32, i64 0
  br label %head34
head34:
  %i35 = phi i64 [ 0, %done9 ], [ %t86, %done40 ]
  %c36 = phi <8 x double> [ splat (double 0x8000000000000000), %done9 ], [ %t85, %done40 ]
  %t37 = icmp slt i64 %i35, 24
  br i1 %t37, label %body34, label %done34
body34:
  %t38 = add i64 %i35, 256
  %t39 = call i64 @llvm.smin.i64(i64 %t38, i64 24)
  br label %head40
head40:
  %i41 = phi i64 [ %i35, %body34 ], [ %t83, %body40 ]
  %c42 = phi <8 x float> [ splat (float 0x8000000000000000), %body34 ], [ %t82, %body40 ]
  %t43 = icmp slt i64 %i41, %t39
  br i1 %t43, label %body40, label %done40
body40:
  %t44 = mul i64 %i7, 24
  %t45 = add i64 %t44, %i41
  %t46 = getelementptr float, ptr %t2, i64 %t45
  %t47 = load <8 x float>, ptr %t46, align 4
  %t48 = insertelement <8 x float> poison, float %t33, i64 0
  %t49 = shufflevector <8 x float> %t48, <8 x float> poison, <8 x i32> zeroinitializer
  %t50 = fsub <8 x float> %t47, %t49
  %t51 = getelementptr float, ptr %t5, i64 %i41
  %t52 = fcmp olt <8 x float> %t50, splat (float 0xC05A000000000000)
  %t53 = select <8 x i1> %t52, <8 x float> splat (float 0xC05A000000000000), <8 x float> %t50
  %t54 = fcmp ogt <8 x float> %t53, splat (float 0x4056400000000000)
  %t55 = select <8 x i1> %t54, <8 x float> splat (float 0x4056400000000000), <8 x float> %t53
  %t56 = fmul <8 x float> %t55, splat (float 0x3FF7154760000000)
  %t57 = call <8 x float> @llvm.rint.v8f32(<8 x float> %t56)
  %t58 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t57, <8 x float> splat (float 0xBFE62E4000000000), <8 x float> %t55)
  %t59 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t57, <8 x float> splat (float 0xBEB7F7D1C0000000), <8 x float> %t58)
  %t60 = call <8 x float> @llvm.fma.v8f32(<8 x float> splat (float 0x3F2A01A020000000), <8 x float> %t59, <8 x float> splat (float 0x3F56C16C20000000))
  %t61 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t60, <8 x float> %t59, <8 x float> splat (float 0x3F81111120000000))
  %t62 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t61, <8 x float> %t59, <8 x float> splat (float 0x3FA5555560000000))
  %t63 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t62, <8 x float> %t59, <8 x float> splat (float 0x3FC5555560000000))
  %t64 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t63, <8 x float> %t59, <8 x float> splat (float 0x3FE0000000000000))
  %t65 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t64, <8 x float> %t59, <8 x float> splat (float 0x3FF0000000000000))
  %t66 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t65, <8 x float> %t59, <8 x float> splat (float 0x3FF0000000000000))
  %t67 = fcmp uno <8 x float> %t57, %t57
  %t68 = select <8 x i1> %t67, <8 x float> splat (float 0x0000000000000000), <8 x float> %t57
  %t69 = fptosi <8 x float> %t68 to <8 x i32>
  %t70 = ashr <8 x i32> %t69, splat (i32 1)
  %t71 = sub <8 x i32> %t69, %t70
  %t72 = add <8 x i32> %t70, splat (i32 127)
  %t73 = shl <8 x i32> %t72, splat (i32 23)
  %t74 = bitcast <8 x i32> %t73 to <8 x float>
  %t75 = fmul <8 x float> %t66, %t74
  %t76 = add <8 x i32> %t71, splat (i32 127)
  %t77 = shl <8 x i32> %t76, splat (i32 23)
  %t78 = bitcast <8 x i32> %t77 to <8 x float>
  %t79 = fmul <8 x float> %t75, %t78
  %t80 = fcmp uno <8 x float> %t50, %t50
  %t81 = select <8 x i1> %t80, <8 x float> %t50, <8 x float> %t79
  store <8 x float> %t81, ptr %t51, align 4
  %t82 = fadd <8 x float> %c42, %t81
  %t83 = add nuw nsw i64 %i41, 8
  br label %head40
done40:
  %t84 = fpext <8 x float> %c42 to <8 x double>
  %t85 = fadd <8 x double> %c36, %t84
  %t86 = add nuw nsw i64 %i35, 256
  br label %head34
done34:
  %t87 = shufflevector <8 x double> %c36, <8 x double> poison, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 0, i32 0, i32 0, i32 0>
  %t88 = fadd <8 x double> %c36, %t87
  %t89 = shufflevector <8 x double> %t88, <8 x double> poison, <8 x i32> <i32 2, i32 3, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t90 = fadd <8 x double> %t88, %t89
  %t91 = shufflevector <8 x double> %t90, <8 x double> poison, <8 x i32> <i32 1, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t92 = fadd <8 x double> %t90, %t91
  %t93 = extractelement <8 x double> %t92, i64 0
  %t94 = fptrunc double %t93 to float
  %t95 = sub i64 24, 0
  %t96 = urem i64 %t95, 8
  %t97 = sub i64 24, %t96
  br label %head98
head98:
  %i99 = phi i64 [ 0, %done34 ], [ %t109, %body98 ]
  %t100 = icmp slt i64 %i99, %t97
  br i1 %t100, label %body98, label %done98
body98:
  %t101 = getelementptr float, ptr %t5, i64 %i99
  %t102 = load <8 x float>, ptr %t101, align 4
  %t103 = insertelement <8 x float> poison, float %t94, i64 0
  %t104 = shufflevector <8 x float> %t103, <8 x float> poison, <8 x i32> zeroinitializer
  %t105 = fdiv <8 x float> %t102, %t104
  %t106 = mul i64 %i7, 24
  %t107 = add i64 %t106, %i99
  %t108 = getelementptr float, ptr %t4, i64 %t107
  store <8 x float> %t105, ptr %t108, align 4
  %t109 = add nuw nsw i64 %i99, 8
  br label %head98
done98:
  %t110 = icmp ne i64 %t96, 0
  br i1 %t110, label %then111, label %after111
then111:
  %t112 = insertelement <8 x i64> poison, i64 %t96, i64 0
  %t113 = shufflevector <8 x i64> %t112, <8 x i64> poison, <8 x i32> zeroinitializer
  %t114 = icmp ult <8 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7>, %t113
  %t115 = getelementptr float, ptr %t5, i64 %t97
  %t116 = load <8 x float>, ptr %t115, align 4
  %t117 = insertelement <8 x float> poison, float %t94, i64 0
  %t118 = shufflevector <8 x float> %t117, <8 x float> poison, <8 x i32> zeroinitializer
  %t119 = fdiv <8 x float> %t116, %t118
  %t120 = mul i64 %i7, 24
  %t121 = add i64 %t120, %t97
  %t122 = getelementptr float, ptr %t4, i64 %t121
  call void @llvm.masked.store.v8f32.p0(<8 x float> %t119, ptr align 4 %t122, <8 x i1> %t114)
  br label %after111
after111:
  %t123 = add nuw nsw i64 %i7, 1
  br label %head6
done6:
  ret void
}
declare i64 @llvm.smin.i64(i64, i64)
declare <8 x float> @llvm.maximum.v8f32(<8 x float>, <8 x float>)
declare <8 x float> @llvm.rint.v8f32(<8 x float>)
declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)
declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, <8 x i1>)
