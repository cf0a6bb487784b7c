define void @kernel(ptr noalias %params, ptr noalias %values, i64 %first, i64 %last) {
entry:
  %t1 = getelementptr ptr, ptr %params, i64 0
  %t2 = load ptr, ptr %t1
  %t3 = getelementptr ptr, ptr %params, i64 1
  %t4 = load ptr, ptr %t3
  %t5 = alloca [24 x float], align 64
  br label %head6
head6:
  %i7 = phi i64 [ %first, %entry ], [ %t119, %after107 ]
  %t8 = icmp slt i64 %i7, %last
  br i1 %t8, label %body6, label %done6
body6:
  br label %head9
head9:
  %i10 = phi i64 [ 0, %body6 ], [ %t26, %done15 ]
  %c11 = phi <4 x float> [ splat (float 0xFFF0000000000000), %body6 ], [ %t25, %done15 ]
  %t12 = icmp slt i64 %i10, 24
  br i1 %t12, label %body9, label %done9
body9:
  %t13 = add i64 %i10, 128
  %t14 = call i64 @llvm.smin.i64(i64 %t13, i64 24)
  br label %head15
head15:
  %i16 = phi i64 [ %i10, %body9 ], [ %t24, %body15 ]
  %c17 = phi <4 x float> [ splat (float 0xFFF0000000000000), %body9 ], [ %t23, %body15 ]
  %t18 = icmp slt i64 %i16, %t14
  br i1 %t18, label %body15, label %done15
body15:
  %t19 = mul i64 %i7, 24
  %t20 = add i64 %t19, %i16
  %t21 = getelementptr float, ptr %t2, i64 %t20
  %t22 = load <4 x float>, ptr %t21, align 4
  %t23 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %c17, <4 x float> %t22)
  %t24 = add nuw nsw i64 %i16, 4
  br label %head15
done15:
  %t25 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %c11, <4 x float> %c17)
  %t26 = add nuw nsw i64 %i10, 128
  br label %head9
done9:
  %t27 = shufflevector <4 x float> %c11, <4 x float> poison, <4 x i32> <i32 2, i32 3, i32 0, i32 0>
  %t28 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %c11, <4 x float> %t27)
  %t29 = shufflevector <4 x float> %t28, <4 x float> poison, <4 x i32> <i32 1, i32 0, i32 0, i32 0>
  %t30 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %t28, <4 x float> %t29)
  %t31 = extractelement <4 x float> %t30, i64 0
  br label %head32
head32:
  %i33 = phi i64 [ 0, %done9 ], [ %t84, %done38 ]
  %c34 = phi <4 x double> [ splat (double 0x8000000000000000), %done9 ], [ %t83, %done38 ]
  %t35 = icmp slt i64 %i33, 24
  br i1 %t35, label %body32, label %done32
body32:
  %t36 = add i64 %i33, 128
  %t37 = call i64 @llvm.smin.i64(i64 %t36, i64 24)
  br label %head38
head38:
  %i39 = phi i64 [ %i33, %body32 ], [ %t81, %body38 ]
  %c40 = phi <4 x float> [ splat (float 0x8000000000000000), %body32 ], [ %t80, %body38 ]
  %t41 = icmp slt i64 %i39, %t37
  br i1 %t41, label %body38, label %done38
body38:
  %t42 = mul i64 %i7, 24
  %t43 = add i64 %t42, %i39
  %t44 = getelementptr float, ptr %t2, i64 %t43
  %t45 = load <4 x float>, ptr %t44, align 4
  %t46 = insertelement <4 x float> poison, float %t31, i64 0
  %t47 = shufflevector <4 x float> %t46, <4 x float> poison, <4 x i32> zeroinitializer
  %t48 = fsub <4 x float> %t45, %t47
  %t49 = getelementptr float, ptr %t5, i64 %i39
  %t50 = fcmp olt <4 x float> %t48, splat (float 0xC05A000000000000)
  %t51 = select <4 x i1> %t50, <4 x float> splat (float 0xC05A000000000000), <4 x float> %t48
  %t52 = fcmp ogt <4 x float> %t51, splat (float 0x4056400000000000)
  %t53 = select <4 x i1> %t52, <4 x float> splat (float 0x4056400000000000), <4 x float> %t51
  %t54 = fmul <4 x float> %t53, splat (float 0x3FF7154760000000)
  %t55 = call <4 x float> @llvm.rint.v4f32(<4 x float> %t54)
  %t56 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t55, <4 x float> splat (float 0xBFE62E4000000000), <4 x float> %t53)
  %t57 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t55, <4 x float> splat (float 0xBEB7F7D1C0000000), <4 x float> %t56)
  %t58 = call <4 x float> @llvm.fma.v4f32(<4 x float> splat (float 0x3F2A01A020000000), <4 x float> %t57, <4 x float> splat (float 0x3F56C16C20000000))
  %t59 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t58, <4 x float> %t57, <4 x float> splat (float 0x3F81111120000000))
  %t60 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t59, <4 x float> %t57, <4 x float> splat (float 0x3FA5555560000000))
  %t61 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t60, <4 x float> %t57, <4 x float> splat (float 0x3FC5555560000000))
  %t62 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t61, <4 x float> %t57, <4 x float> splat (float 0x3FE0000000000000))
  %t63 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t62, <4 x float> %t57, <4 x float> splat (float 0x3FF0000000000000))
  %t64 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t63, <4 x float> %t57, <4 x float> splat (float 0x3FF0000000000000))
  %t65 = fcmp uno <4 x float> %t55, %t55
  %t66 = select <4 x i1> %t65, <4 x float> splat (float 0x0000000000000000), <4 x float> %t55
  %t67 = fptosi <4 x float> %t66 to <4 x i32>
  %t68 = ashr <4 x i32> %t67, splat (i32 1)
  %t69 = sub <4 x i32> %t67, %t68
  %t70 = add <4 x i32> %t68, splat (i32 127)
  %t71 = shl <4 x i32> %t70, splat (i32 23)
  %t72 = bitcast <4 x i32> %t71 to <4 x float>
  %t73 = fmul <4 x float> %t64, %t72
  %t74 = add <4 x i32> %t69, splat (i32 127)
  %t75 = shl <4 x i32> %t74, splat (i32 23)
  %t76 = bitcast <4 x i32> %t75 to <4 x float>
  %t77 = fmul <4 x float> %t73, %t76
  %t78 = fcmp uno <4 x float> %t48, %t48
  %t79 = select <4 x i1> %t78, <4 x float> %t48, <4 x float> %t77
  store <4 x float> %t79, ptr %t49, align 4
  %t80 = fadd <4 x float> %c40, %t79
  %t81 = add nuw nsw i64 %i39, 4
  br label %head38
done38:
  %t82 = fpext <4 x float> %c40 to <4 x double>
  %t83 = fadd <4 x double> %c34, %t82
  %t84 = add nuw nsw i64 %i33, 128
  br label %head32
done32:
  %t85 = shufflevector <4 x double> %c34, <4 x double> poison, <4 x i32> <i32 2, i32 3, i32 0, i32 0>
  %t86 = fadd <4 x double> %c34, %t85
  %t87 = shufflevector <4 x double> %t86, <4 x double> poison, <4 x i32> <i32 1, i32 0, i32 0, i32 0>
  %t88 = fadd <4 x double> %t86, %t87
  %t89 = extractelement <4 x double> %t88, i64 0
  %t90 = fptrunc double %t89 to float
  %t91 = sub i64 24, 0
  %t92 = urem i64 %t91, 4
  %t93 = sub i64 24, %t92
  br label %head94
head94:
  %i95 = phi i64 [ 0, %done32 ], [ %t105, %body94 ]
  %t96 = icmp slt i64 %i95, %t93
  br i1 %t96, label %body94, label %done94
body94:
  %t97 = getelementptr float, ptr %t5, i64 %i95
  %t98 = load <4 x float>, ptr %t97, align 4
  %t99 = insertelement <4 x float> poison, float %t90, i64 0
  %t100 = shufflevector <4 x float> %t99, <4 x float> poison, <4 x i32> zeroinitializer
  %t101 = fdiv <4 x float> %t98, %t100
  %t102 = mul i64 %i7, 24
  %t103 = add i64 %t102, %i95
  %t104 = getelementptr float, ptr %t4, i64 %t103
  store <4 x float> %t101, ptr %t104, align 4
  %t105 = add nuw nsw i64 %i95, 4
  br label %head94
done94:
  %t106 = icmp ne i64 %t92, 0
  br i1 %t106, label %then107, label %after107
then107:
  %t108 = insertelement <4 x i64> poison, i64 %t92, i64 0
  %t109 = shufflevector <4 x i64> %t108, <4 x i64> poison, <4 x i32> zeroinitializer
  %t110 = icmp ult <4 x i64> <i64 0, i64 1, i64 2, i64 3>, %t109
  %t111 = getelementptr float, ptr %t5, i64 %t93
  %t112 = load <4 x float>, ptr %t111, align 4
  %t113 = insertelement <4 x float> poison, float %t90, i64 0
  %t114 = shufflevector <4 x float> %t113, <4 x float> poison, <4 x i32> zeroinitializer
  %t115 = fdiv <4 x float> %t112, %t114
  %t116 = mul i64 %i7, 24
  %t117 = add i64 %t116, %t93
  %t118 = getelementptr float, ptr %t4, i64 %t117
  call void @llvm.masked.store.v4f32.p0(<4 x float> %t115, ptr align 4 %t118, <4 x i1> %t110)
  br label %after107
after107:
  %t119 = add nuw nsw i64 %i7, 1
  br label %head6
done6:
  ret void
}
declare i64 @llvm.smin.i64(i64, i64)
declare <4 x float> @llvm.maximum.v4f32(<4 x float>, <4 x float>)
declare <4 x float> @llvm.rint.v4f32(<4 x float>)
declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)
declare void @llvm.masked.store.v4f32.p0(<4 x float>, ptr, <4 x i1>)
