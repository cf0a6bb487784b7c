define void @kernel(ptr noalias %params, ptr noalias %values, i64 %first, i64 %last) {
entry:
  %row0 = alloca [24 x float], align 64
  %t1 = getelementptr ptr, ptr %params, i64 0
  %t2 = load ptr, ptr %t1
  %t3 = getelementptr ptr, ptr %params, i64 1
  %t4 = load ptr, ptr %t3
  br label %head5
head5:
  %i6 = phi i64 [ %first, %entry ], [ %t109, %done92 ]
  %t7 = icmp slt i64 %i6, %last
  br i1 %t7, label %body5, label %done5
body5:
  %t8 = mul i64 %i6, 24
  %t9 = getelementptr [4 x i8], ptr %t2, i64 %t8
  %t10 = freeze ptr %t9
  br label %head11
head11:
  %i12 = phi i64 [ 0, %body5 ], [ %t24, %body11 ]
  %c13 = phi <4 x i32> [ splat (i32 -8388608), %body5 ], [ %t20, %body11 ]
  %c14 = phi <4 x i32> [ splat (i32 -8388608), %body5 ], [ %t21, %body11 ]
  %c15 = phi <4 x i32> [ splat (i32 -8388608), %body5 ], [ %t22, %body11 ]
  %t16 = icmp slt i64 %i12, 24
  br i1 %t16, label %body11, label %done11
body11:
  %t17 = getelementptr float, ptr %t10, i64 %i12
  %t18 = load <4 x float>, ptr %t17, align 1
  %t19 = bitcast <4 x float> %t18 to <4 x i32>
  %t20 = call <4 x i32> @llvm.smax.v4i32(<4 x i32> %c13, <4 x i32> %t19)
  %t21 = call <4 x i32> @llvm.umin.v4i32(<4 x i32> %c14, <4 x i32> %t19)
  %t22 = call <4 x i32> @llvm.umax.v4i32(<4 x i32> %c15, <4 x i32> %t19)
  %t23 = add nuw nsw i64 %i12, 4
  %t24 = freeze i64 %t23
  br label %head11
done11:
  %t25 = call i32 @llvm.vector.reduce.smax.v4i32(<4 x i32> %c13)
  %t26 = call i32 @llvm.vector.reduce.umin.v4i32(<4 x i32> %c14)
  %t27 = call i32 @llvm.vector.reduce.umax.v4i32(<4 x i32> %c15)
  %t28 = icmp sge i32 %t25, 0
  %t29 = select i1 %t28, i32 %t25, i32 %t26
  %t30 = icmp sgt i32 %t25, 2139095040
  %t31 = icmp ugt i32 %t27, -8388608
  %t32 = or i1 %t30, %t31
  %t33 = bitcast i32 %t29 to float
  %t34 = select i1 %t32, float 0x7FF8000000000000, float %t33
  %t35 = insertelement <4 x float> poison, float %t34, i64 0
  %t36 = shufflevector <4 x float> %t35, <4 x float> poison, <4 x i32> zeroinitializer
  %t37 = mul i64 %i6, 24
  %t38 = getelementptr [4 x i8], ptr %t4, i64 %t37
  %t39 = freeze ptr %t38
  br label %head40
head40:
  %i41 = phi i64 [ 0, %done11 ], [ %t88, %body40 ]
  %c42 = phi <4 x float> [ splat (float 0x8000000000000000), %done11 ], [ %t86, %body40 ]
  %t43 = icmp slt i64 %i41, 24
  br i1 %t43, label %body40, label %done40
body40:
  %t44 = getelementptr [4 x i8], ptr %t10, i64 %i41
  %t45 = getelementptr i8, ptr %t44, i64 96
  call void @llvm.prefetch.p0(ptr %t45, i32 0, i32 3, i32 1)
  %t46 = getelementptr [4 x i8], ptr %t39, i64 %i41
  call void @llvm.prefetch.p0(ptr %t46, i32 1, i32 3, i32 1)
  %t47 = getelementptr float, ptr %t10, i64 %i41
  %t48 = load <4 x float>, ptr %t47, align 1
  %t49 = fsub <4 x float> %t48, %t36
  %t50 = fcmp ogt <4 x float> %t49, splat (float 0x4056400000000000)
  %t51 = select <4 x i1> %t50, <4 x float> splat (float 0x4056400000000000), <4 x float> %t49
  %t52 = fcmp olt <4 x float> %t51, splat (float 0xC05A000000000000)
  %t53 = select <4 x i1> %t52, <4 x float> splat (float 0xC05A000000000000), <4 x float> %t51
  %t54 = fmul <4 x float> %t53, splat (float 0x3FF7154760000000)
  %t55 = fadd <4 x float> %t54, splat (float 0x4168001FC0000000)
  %t56 = fsub <4 x float> %t55, splat (float 0x4168001FC0000000)
  %t57 = fmul <4 x float> %t56, splat (float 0xBFE62E0000000000)
  %t58 = fadd <4 x float> %t57, %t53
  %t59 = fmul <4 x float> %t56, splat (float 0xBF00BFBE80000000)
  %t60 = fadd <4 x float> %t59, %t58
  %t61 = fsub <4 x float> %t58, %t60
  %t62 = fmul <4 x float> %t56, splat (float 0xBF00BFBE80000000)
  %t63 = fadd <4 x float> %t62, %t61
  %t64 = fmul <4 x float> %t60, splat (float 0x3F56D12540000000)
  %t65 = fadd <4 x float> %t64, splat (float 0x3F8120CBA0000000)
  %t66 = fmul <4 x float> %t65, %t60
  %t67 = fadd <4 x float> %t66, splat (float 0x3FA5555180000000)
  %t68 = fmul <4 x float> %t67, %t60
  %t69 = fadd <4 x float> %t68, splat (float 0x3FC5554DC0000000)
  %t70 = fmul <4 x float> %t69, %t60
  %t71 = fadd <4 x float> %t70, splat (float 0x3FE0000000000000)
  %t72 = fmul <4 x float> %t60, %t60
  %t73 = fmul <4 x float> %t71, %t72
  %t74 = fadd <4 x float> %t73, %t60
  %t75 = fadd <4 x float> %t74, splat (float 0x3FF0000000000000)
  %t76 = bitcast <4 x float> %t55 to <4 x i32>
  %t77 = ashr <4 x i32> %t76, splat (i32 1)
  %t78 = shl <4 x i32> %t77, splat (i32 23)
  %t79 = bitcast <4 x i32> %t78 to <4 x float>
  %t80 = fmul <4 x float> %t75, %t79
  %t81 = sub <4 x i32> %t76, %t77
  %t82 = shl <4 x i32> %t81, splat (i32 23)
  %t83 = bitcast <4 x i32> %t82 to <4 x float>
  %t84 = fmul <4 x float> %t80, %t83
  %t85 = getelementptr float, ptr %row0, i64 %i41
  store <4 x float> %t84, ptr %t85, align 4
  %t86 = fadd <4 x float> %c42, %t84
  %t87 = add nuw nsw i64 %i41, 4
  %t88 = freeze i64 %t87
  br label %head40
done40:
  %t89 = call reassoc float @llvm.vector.reduce.fadd.v4f32(float 0x8000000000000000, <4 x float> %c42)
  %t90 = insertelement <4 x float> poison, float %t89, i64 0
  %t91 = shufflevector <4 x float> %t90, <4 x float> poison, <4 x i32> zeroinitializer
  br label %head92
head92:
  %i93 = phi i64 [ 0, %done40 ], [ %t107, %body92 ]
  %t94 = icmp slt i64 %i93, 24
  br i1 %t94, label %body92, label %done92
body92:
  %t95 = getelementptr float, ptr %row0, i64 %i93
  %t96 = load <4 x float>, ptr %t95, align 4
  %t97 = fdiv <4 x float> %t96, %t91
  %t98 = call <4 x float> @llvm.arithmetic.fence.v4f32(<4 x float> %t97)
  %t99 = getelementptr float, ptr %t39, i64 %i93
  store <4 x float> %t98, ptr %t99, align 1
  %t100 = add i64 %i93, 4
  %t101 = getelementptr float, ptr %row0, i64 %t100
  %t102 = load <4 x float>, ptr %t101, align 4
  %t103 = fdiv <4 x float> %t102, %t91
  %t104 = call <4 x float> @llvm.arithmetic.fence.v4f32(<4 x float> %t103)
  %t105 = getelementptr float, ptr %t39, i64 %t100
  store <4 x float> %t104, ptr %t105, align 1
  %t106 = add nuw nsw i64 %i93, 8
  %t107 = freeze i64 %t106
  br label %head92
done92:
  %t108 = add nuw nsw i64 %i6, 1
  %t109 = freeze i64 %t108
  br label %head5
done5:
  ret void
}
declare <4 x i32> @llvm.smax.v4i32(<4 x i32>, <4 x i32>)
declare <4 x i32> @llvm.umin.v4i32(<4 x i32>, <4 x i32>)
declare <4 x i32> @llvm.umax.v4i32(<4 x i32>, <4 x i32>)
declare i32 @llvm.vector.reduce.smax.v4i32(<4 x i32>)
declare i32 @llvm.vector.reduce.umin.v4i32(<4 x i32>)
declare i32 @llvm.vector.reduce.umax.v4i32(<4 x i32>)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare float @llvm.vector.reduce.fadd.v4f32(float, <4 x float>)
declare <4 x float> @llvm.arithmetic.fence.v4f32(<4 x float>)
