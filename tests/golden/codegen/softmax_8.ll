define void @kernel(ptr noalias %params, ptr noalias %values, i64 %first, i64 %last) {
entry:
  %row0 = alloca [24 x float], align 64
  %t1 = getelementptr ptr, ptr %params, i64 0
  %t2 = load ptr, ptr %t1
  %t3 = getelementptr ptr, ptr %params, i64 1
  %t4 = load ptr, ptr %t3
  br label %head5
head5:
  %i6 = phi i64 [ %first, %entry ], [ %t97, %done37 ]
  %t7 = icmp slt i64 %i6, %last
  br i1 %t7, label %body5, label %done5
body5:
  %t8 = mul i64 %i6, 24
  %t9 = getelementptr [4 x i8], ptr %t2, i64 %t8
  %t10 = freeze ptr %t9
  br label %head11
head11:
  %i12 = phi i64 [ 0, %body5 ], [ %t24, %body11 ]
  %c13 = phi <8 x i32> [ splat (i32 -8388608), %body5 ], [ %t20, %body11 ]
  %c14 = phi <8 x i32> [ splat (i32 -8388608), %body5 ], [ %t21, %body11 ]
  %c15 = phi <8 x i32> [ splat (i32 -8388608), %body5 ], [ %t22, %body11 ]
  %t16 = icmp slt i64 %i12, 24
  br i1 %t16, label %body11, label %done11
body11:
  %t17 = getelementptr float, ptr %t10, i64 %i12
  %t18 = load <8 x float>, ptr %t17, align 1
  %t19 = bitcast <8 x float> %t18 to <8 x i32>
  %t20 = call <8 x i32> @llvm.smax.v8i32(<8 x i32> %c13, <8 x i32> %t19)
  %t21 = call <8 x i32> @llvm.umin.v8i32(<8 x i32> %c14, <8 x i32> %t19)
  %t22 = call <8 x i32> @llvm.umax.v8i32(<8 x i32> %c15, <8 x i32> %t19)
  %t23 = add nuw nsw i64 %i12, 8
  %t24 = freeze i64 %t23
  br label %head11
done11:
  %t25 = call i32 @llvm.vector.reduce.smax.v8i32(<8 x i32> %c13)
  %t26 = call i32 @llvm.vector.reduce.umin.v8i32(<8 x i32> %c14)
  %t27 = call i32 @llvm.vector.reduce.umax.v8i32(<8 x i32> %c15)
  %t28 = icmp sge i32 %t25, 0
  %t29 = select i1 %t28, i32 %t25, i32 %t26
  %t30 = icmp sgt i32 %t25, 2139095040
  %t31 = icmp ugt i32 %t27, -8388608
  %t32 = or i1 %t30, %t31
  %t33 = bitcast i32 %t29 to float
  %t34 = select i1 %t32, float 0x7FF8000000000000, float %t33
  %t35 = insertelement <8 x float> poison, float %t34, i64 0
  %t36 = shufflevector <8 x float> %t35, <8 x float> poison, <8 x i32> zeroinitializer
  br label %head37
head37:
  %i38 = phi i64 [ 0, %done11 ], [ %t73, %body37 ]
  %c39 = phi <8 x float> [ splat (float 0x8000000000000000), %done11 ], [ %t71, %body37 ]
  %t40 = icmp slt i64 %i38, 24
  br i1 %t40, label %body37, label %done37
body37:
  %t41 = getelementptr float, ptr %t10, i64 %i38
  %t42 = load <8 x float>, ptr %t41, align 1
  %t43 = fsub <8 x float> %t42, %t36
  %t44 = fcmp ogt <8 x float> %t43, splat (float 0x4056400000000000)
  %t45 = select <8 x i1> %t44, <8 x float> splat (float 0x4056400000000000), <8 x float> %t43
  %t46 = fcmp olt <8 x float> %t45, splat (float 0xC05A000000000000)
  %t47 = select <8 x i1> %t46, <8 x float> splat (float 0xC05A000000000000), <8 x float> %t45
  %t48 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t47, <8 x float> splat (float 0x3FF7154760000000), <8 x float> splat (float 0x4168001FC0000000))
  %t49 = fsub <8 x float> %t48, splat (float 0x4168001FC0000000)
  %t50 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t49, <8 x float> splat (float 0xBFE62E0000000000), <8 x float> %t47)
  %t51 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t49, <8 x float> splat (float 0xBF00BFBE80000000), <8 x float> %t50)
  %t52 = fsub <8 x float> %t50, %t51
  %t53 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t49, <8 x float> splat (float 0xBF00BFBE80000000), <8 x float> %t52)
  %t54 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t51, <8 x float> splat (float 0x3F56D12540000000), <8 x float> splat (float 0x3F8120CBA0000000))
  %t55 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t54, <8 x float> %t51, <8 x float> splat (float 0x3FA5555180000000))
  %t56 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t55, <8 x float> %t51, <8 x float> splat (float 0x3FC5554DC0000000))
  %t57 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t56, <8 x float> %t51, <8 x float> splat (float 0x3FE0000000000000))
  %t58 = fmul <8 x float> %t51, %t51
  %t59 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t57, <8 x float> %t58, <8 x float> %t51)
  %t60 = fadd <8 x float> %t59, splat (float 0x3FF0000000000000)
  %t61 = bitcast <8 x float> %t48 to <8 x i32>
  %t62 = ashr <8 x i32> %t61, splat (i32 1)
  %t63 = shl <8 x i32> %t62, splat (i32 23)
  %t64 = bitcast <8 x i32> %t63 to <8 x float>
  %t65 = fmul <8 x float> %t60, %t64
  %t66 = sub <8 x i32> %t61, %t62
  %t67 = shl <8 x i32> %t66, splat (i32 23)
  %t68 = bitcast <8 x i32> %t67 to <8 x float>
  %t69 = fmul <8 x float> %t65, %t68
  %t70 = getelementptr float, ptr %row0, i64 %i38
  store <8 x float> %t69, ptr %t70, align 4
  %t71 = fadd <8 x float> %c39, %t69
  %t72 = add nuw nsw i64 %i38, 8
  %t73 = freeze i64 %t72
  br label %head37
done37:
  %t74 = call reassoc float @llvm.vector.reduce.fadd.v8f32(float 0x8000000000000000, <8 x float> %c39)
  %t75 = insertelement <8 x float> poison, float %t74, i64 0
  %t76 = shufflevector <8 x float> %t75, <8 x float> poison, <8 x i32> zeroinitializer
  %t77 = mul i64 %i6, 24
  %t78 = getelementptr [4 x i8], ptr %t4, i64 %t77
  %t79 = freeze ptr %t78
  %t80 = getelementptr float, ptr %row0, i64 0
  %t81 = load <8 x float>, ptr %t80, align 4
  %t82 = fdiv <8 x float> %t81, %t76
  %t83 = call <8 x float> @llvm.arithmetic.fence.v8f32(<8 x float> %t82)
  %t84 = getelementptr float, ptr %t79, i64 0
  store <8 x float> %t83, ptr %t84, align 1
  %t85 = add i64 0, 8
  %t86 = getelementptr float, ptr %row0, i64 %t85
  %t87 = load <8 x float>, ptr %t86, align 4
  %t88 = fdiv <8 x float> %t87, %t76
  %t89 = call <8 x float> @llvm.arithmetic.fence.v8f32(<8 x float> %t88)
  %t90 = getelementptr float, ptr %t79, i64 %t85
  store <8 x float> %t89, ptr %t90, align 1
  %t91 = getelementptr float, ptr %row0, i64 16
  %t92 = load <8 x float>, ptr %t91, align 4
  %t93 = fdiv <8 x float> %t92, %t76
  %t94 = call <8 x float> @llvm.arithmetic.fence.v8f32(<8 x float> %t93)
  %t95 = getelementptr float, ptr %t79, i64 16
  store <8 x float> %t94, ptr %t95, align 1
  %t96 = add nuw nsw i64 %i6, 1
  %t97 = freeze i64 %t96
  br label %head5
done5:
  ret void
}
declare <8 x i32> @llvm.smax.v8i32(<8 x i32>, <8 x i32>)
declare <8 x i32> @llvm.umin.v8i32(<8 x i32>, <8 x i32>)
declare <8 x i32> @llvm.umax.v8i32(<8 x i32>, <8 x i32>)
declare i32 @llvm.vector.reduce.smax.v8i32(<8 x i32>)
declare i32 @llvm.vector.reduce.umin.v8i32(<8 x i32>)
declare i32 @llvm.vector.reduce.umax.v8i32(<8 x i32>)
declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)
declare float @llvm.vector.reduce.fadd.v8f32(float, <8 x float>)
declare <8 x float> @llvm.arithmetic.fence.v8f32(<8 x float>)
