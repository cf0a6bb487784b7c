define void @kernel(ptr noalias %params, ptr noalias %values, i64 %first, i64 %last) {
entry:
  %row0 = alloca [24 x float], align 64
  %t1 = getelementptr ptr, ptr %params, i64 0
  %t2 = load ptr, ptr %t1
  %t3 = getelementptr ptr, ptr %params, i64 1
  %t4 = load ptr, ptr %t3
  br label %head5
head5:
  %i6 = phi i64 [ %first, %entry ], [ %t91, %done36 ]
  %t7 = icmp slt i64 %i6, %last
  br i1 %t7, label %body5, label %done5
body5:
  %t8 = mul i64 %i6, 24
  %t9 = getelementptr [4 x i8], ptr %t2, i64 %t8
  %t10 = freeze ptr %t9
  br label %head11
head11:
  %i12 = phi i64 [ 0, %body5 ], [ %t23, %body11 ]
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
  br label %head11
done11:
  %t24 = call i32 @llvm.vector.reduce.smax.v8i32(<8 x i32> %c13)
  %t25 = call i32 @llvm.vector.reduce.umin.v8i32(<8 x i32> %c14)
  %t26 = call i32 @llvm.vector.reduce.umax.v8i32(<8 x i32> %c15)
  %t27 = icmp sge i32 %t24, 0
  %t28 = select i1 %t27, i32 %t24, i32 %t25
  %t29 = icmp sgt i32 %t24, 2139095040
  %t30 = icmp ugt i32 %t26, -8388608
  %t31 = or i1 %t29, %t30
  %t32 = bitcast i32 %t28 to float
  %t33 = select i1 %t31, float 0x7FF8000000000000, float %t32
  %t34 = insertelement <8 x float> poison, float %t33, i64 0
  %t35 = shufflevector <8 x float> %t34, <8 x float> poison, <8 x i32> zeroinitializer
  br label %head36
head36:
  %i37 = phi i64 [ 0, %done11 ], [ %t71, %body36 ]
  %c38 = phi <8 x float> [ splat (float 0x8000000000000000), %done11 ], [ %t70, %body36 ]
  %t39 = icmp slt i64 %i37, 24
  br i1 %t39, label %body36, label %done36
body36:
  %t40 = getelementptr float, ptr %t10, i64 %i37
  %t41 = load <8 x float>, ptr %t40, align 1
  %t42 = fsub <8 x float> %t41, %t35
  %t43 = fcmp ogt <8 x float> %t42, splat (float 0x4056400000000000)
  %t44 = select <8 x i1> %t43, <8 x float> splat (float 0x4056400000000000), <8 x float> %t42
  %t45 = fcmp olt <8 x float> %t44, splat (float 0xC05A000000000000)
  %t46 = select <8 x i1> %t45, <8 x float> splat (float 0xC05A000000000000), <8 x float> %t44
  %t47 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t46, <8 x float> splat (float 0x3FF7154760000000), <8 x float> splat (float 0x4168001FC0000000))
  %t48 = fsub <8 x float> %t47, splat (float 0x4168001FC0000000)
  %t49 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t48, <8 x float> splat (float 0xBFE62E0000000000), <8 x float> %t46)
  %t50 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t48, <8 x float> splat (float 0xBF00BFBE80000000), <8 x float> %t49)
  %t51 = fsub <8 x float> %t49, %t50
  %t52 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t48, <8 x float> splat (float 0xBF00BFBE80000000), <8 x float> %t51)
  %t53 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t50, <8 x float> splat (float 0x3F56D12540000000), <8 x float> splat (float 0x3F8120CBA0000000))
  %t54 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t53, <8 x float> %t50, <8 x float> splat (float 0x3FA5555180000000))
  %t55 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t54, <8 x float> %t50, <8 x float> splat (float 0x3FC5554DC0000000))
  %t56 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t55, <8 x float> %t50, <8 x float> splat (float 0x3FE0000000000000))
  %t57 = fmul <8 x float> %t50, %t50
  %t58 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t56, <8 x float> %t57, <8 x float> %t50)
  %t59 = fadd <8 x float> %t58, splat (float 0x3FF0000000000000)
  %t60 = bitcast <8 x float> %t47 to <8 x i32>
  %t61 = ashr <8 x i32> %t60, splat (i32 1)
  %t62 = shl <8 x i32> %t61, splat (i32 23)
  %t63 = bitcast <8 x i32> %t62 to <8 x float>
  %t64 = fmul <8 x float> %t59, %t63
  %t65 = sub <8 x i32> %t60, %t61
  %t66 = shl <8 x i32> %t65, splat (i32 23)
  %t67 = bitcast <8 x i32> %t66 to <8 x float>
  %t68 = fmul <8 x float> %t64, %t67
  %t69 = getelementptr float, ptr %row0, i64 %i37
  store <8 x float> %t68, ptr %t69, align 4
  %t70 = fadd <8 x float> %c38, %t68
  %t71 = add nuw nsw i64 %i37, 8
  br label %head36
done36:
  %t72 = call reassoc float @llvm.vector.reduce.fadd.v8f32(float 0x8000000000000000, <8 x float> %c38)
  %t73 = insertelement <8 x float> poison, float %t72, i64 0
  %t74 = shufflevector <8 x float> %t73, <8 x float> poison, <8 x i32> zeroinitializer
  %t75 = mul i64 %i6, 24
  %t76 = getelementptr [4 x i8], ptr %t4, i64 %t75
  %t77 = freeze ptr %t76
  %t78 = getelementptr float, ptr %row0, i64 0
  %t79 = load <8 x float>, ptr %t78, align 4
  %t80 = fdiv <8 x float> %t79, %t74
  %t81 = getelementptr float, ptr %t77, i64 0
  store <8 x float> %t80, ptr %t81, align 1
  %t82 = add i64 0, 8
  %t83 = getelementptr float, ptr %row0, i64 %t82
  %t84 = load <8 x float>, ptr %t83, align 4
  %t85 = fdiv <8 x float> %t84, %t74
  %t86 = getelementptr float, ptr %t77, i64 %t82
  store <8 x float> %t85, ptr %t86, align 1
  %t87 = getelementptr float, ptr %row0, i64 16
  %t88 = load <8 x float>, ptr %t87, align 4
  %t89 = fdiv <8 x float> %t88, %t74
  %t90 = getelementptr float, ptr %t77, i64 16
  store <8 x float> %t89, ptr %t90, align 1
  %t91 = add nuw nsw i64 %i6, 1
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
