define void @kernel(ptr noalias %params, ptr noalias %values, i64 %first, i64 %last) {
entry:
  %row0 = alloca [32 x float], align 64
  %t1 = getelementptr ptr, ptr %params, i64 0
  %t2 = load ptr, ptr %t1
  %t3 = getelementptr ptr, ptr %params, i64 1
  %t4 = load ptr, ptr %t3
  br label %head5
head5:
  %i6 = phi i64 [ %first, %entry ], [ %t105, %body5 ]
  %t7 = icmp slt i64 %i6, %last
  br i1 %t7, label %body5, label %done5
body5:
  %t8 = mul i64 %i6, 24
  %t9 = getelementptr [4 x i8], ptr %t2, i64 %t8
  %t10 = freeze ptr %t9
  %t11 = getelementptr float, ptr %t10, i64 0
  %t12 = load <16 x float>, ptr %t11, align 1
  %t13 = bitcast <16 x float> %t12 to <16 x i32>
  %t14 = call <16 x i32> @llvm.smax.v16i32(<16 x i32> splat (i32 -8388608), <16 x i32> %t13)
  %t15 = call <16 x i32> @llvm.umin.v16i32(<16 x i32> splat (i32 -8388608), <16 x i32> %t13)
  %t16 = call <16 x i32> @llvm.umax.v16i32(<16 x i32> splat (i32 -8388608), <16 x i32> %t13)
  %t17 = icmp ult <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, splat (i32 8)
  %t18 = getelementptr float, ptr %t10, i64 16
  %t19 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %t18, i32 1, <16 x i1> %t17, <16 x float> zeroinitializer)
  %t20 = select <16 x i1> %t17, <16 x float> %t19, <16 x float> splat (float 0xFFF0000000000000)
  %t21 = bitcast <16 x float> %t20 to <16 x i32>
  %t22 = call <16 x i32> @llvm.smax.v16i32(<16 x i32> %t14, <16 x i32> %t21)
  %t23 = call <16 x i32> @llvm.umin.v16i32(<16 x i32> %t15, <16 x i32> %t21)
  %t24 = call <16 x i32> @llvm.umax.v16i32(<16 x i32> %t16, <16 x i32> %t21)
  %t25 = call i32 @llvm.vector.reduce.smax.v16i32(<16 x i32> %t22)
  %t26 = call i32 @llvm.vector.reduce.umin.v16i32(<16 x i32> %t23)
  %t27 = call i32 @llvm.vector.reduce.umax.v16i32(<16 x i32> %t24)
  %t28 = icmp sge i32 %t25, 0
  %t29 = select i1 %t28, i32 %t25, i32 %t26
  %t30 = icmp sgt i32 %t25, 2139095040
  %t31 = icmp ugt i32 %t27, -8388608
  %t32 = or i1 %t30, %t31
  %t33 = bitcast i32 %t29 to float
  %t34 = select i1 %t32, float 0x7FF8000000000000, float %t33
  %t35 = insertelement <16 x float> poison, float %t34, i64 0
  %t36 = shufflevector <16 x float> %t35, <16 x float> poison, <16 x i32> zeroinitializer
  %t37 = getelementptr float, ptr %t10, i64 0
  %t38 = load <16 x float>, ptr %t37, align 1
  %t39 = fsub <16 x float> %t38, %t36
  %t40 = fcmp ogt <16 x float> %t39, splat (float 0x4056400000000000)
  %t41 = select <16 x i1> %t40, <16 x float> splat (float 0x4056400000000000), <16 x float> %t39
  %t42 = fcmp olt <16 x float> %t41, splat (float 0xC05A000000000000)
  %t43 = select <16 x i1> %t42, <16 x float> splat (float 0xC05A000000000000), <16 x float> %t41
  %t44 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t43, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001FC0000000))
  %t45 = fsub <16 x float> %t44, splat (float 0x4168001FC0000000)
  %t46 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t45, <16 x float> splat (float 0xBFE62E0000000000), <16 x float> %t43)
  %t47 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t45, <16 x float> splat (float 0xBF00BFBE80000000), <16 x float> %t46)
  %t48 = fsub <16 x float> %t46, %t47
  %t49 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t45, <16 x float> splat (float 0xBF00BFBE80000000), <16 x float> %t48)
  %t50 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t47, <16 x float> splat (float 0x3F56D12540000000), <16 x float> splat (float 0x3F8120CBA0000000))
  %t51 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t50, <16 x float> %t47, <16 x float> splat (float 0x3FA5555180000000))
  %t52 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t51, <16 x float> %t47, <16 x float> splat (float 0x3FC5554DC0000000))
  %t53 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t52, <16 x float> %t47, <16 x float> splat (float 0x3FE0000000000000))
  %t54 = fmul <16 x float> %t47, %t47
  %t55 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t53, <16 x float> %t54, <16 x float> %t47)
  %t56 = fadd <16 x float> %t55, splat (float 0x3FF0000000000000)
  %t57 = fsub <16 x float> %t44, splat (float 0x4168001FC0000000)
  %t58 = call <16 x float> @llvm.x86.avx512.mask.scalef.ps.512(<16 x float> %t56, <16 x float> %t57, <16 x float> %t56, i16 -1, i32 4)
  %t59 = getelementptr float, ptr %row0, i64 0
  store <16 x float> %t58, ptr %t59, align 4
  %t60 = fadd <16 x float> splat (float 0x8000000000000000), %t58
  %t61 = icmp ult <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, splat (i32 8)
  %t62 = getelementptr float, ptr %t10, i64 16
  %t63 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %t62, i32 1, <16 x i1> %t61, <16 x float> zeroinitializer)
  %t64 = fsub <16 x float> %t63, %t36
  %t65 = fcmp ogt <16 x float> %t64, splat (float 0x4056400000000000)
  %t66 = select <16 x i1> %t65, <16 x float> splat (float 0x4056400000000000), <16 x float> %t64
  %t67 = fcmp olt <16 x float> %t66, splat (float 0xC05A000000000000)
  %t68 = select <16 x i1> %t67, <16 x float> splat (float 0xC05A000000000000), <16 x float> %t66
  %t69 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t68, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001FC0000000))
  %t70 = fsub <16 x float> %t69, splat (float 0x4168001FC0000000)
  %t71 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t70, <16 x float> splat (float 0xBFE62E0000000000), <16 x float> %t68)
  %t72 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t70, <16 x float> splat (float 0xBF00BFBE80000000), <16 x float> %t71)
  %t73 = fsub <16 x float> %t71, %t72
  %t74 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t70, <16 x float> splat (float 0xBF00BFBE80000000), <16 x float> %t73)
  %t75 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t72, <16 x float> splat (float 0x3F56D12540000000), <16 x float> splat (float 0x3F8120CBA0000000))
  %t76 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t75, <16 x float> %t72, <16 x float> splat (float 0x3FA5555180000000))
  %t77 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t76, <16 x float> %t72, <16 x float> splat (float 0x3FC5554DC0000000))
  %t78 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t77, <16 x float> %t72, <16 x float> splat (float 0x3FE0000000000000))
  %t79 = fmul <16 x float> %t72, %t72
  %t80 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t78, <16 x float> %t79, <16 x float> %t72)
  %t81 = fadd <16 x float> %t80, splat (float 0x3FF0000000000000)
  %t82 = fsub <16 x float> %t69, splat (float 0x4168001FC0000000)
  %t83 = call <16 x float> @llvm.x86.avx512.mask.scalef.ps.512(<16 x float> %t81, <16 x float> %t82, <16 x float> %t81, i16 -1, i32 4)
  %t84 = getelementptr float, ptr %row0, i64 16
  store <16 x float> %t83, ptr %t84, align 4
  %t85 = select <16 x i1> %t61, <16 x float> %t83, <16 x float> splat (float 0x8000000000000000)
  %t86 = fadd <16 x float> %t60, %t85
  %t87 = call reassoc float @llvm.vector.reduce.fadd.v16f32(float 0x8000000000000000, <16 x float> %t86)
  %t88 = insertelement <16 x float> poison, float %t87, i64 0
  %t89 = shufflevector <16 x float> %t88, <16 x float> poison, <16 x i32> zeroinitializer
  %t90 = mul i64 %i6, 24
  %t91 = getelementptr [4 x i8], ptr %t4, i64 %t90
  %t92 = freeze ptr %t91
  %t93 = getelementptr float, ptr %row0, i64 0
  %t94 = load <16 x float>, ptr %t93, align 4
  %t95 = fdiv <16 x float> %t94, %t89
  %t96 = call <16 x float> @llvm.arithmetic.fence.v16f32(<16 x float> %t95)
  %t97 = getelementptr float, ptr %t92, i64 0
  store <16 x float> %t96, ptr %t97, align 1
  %t98 = icmp ult <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, splat (i32 8)
  %t99 = getelementptr float, ptr %row0, i64 16
  %t100 = load <16 x float>, ptr %t99, align 4
  %t101 = fdiv <16 x float> %t100, %t89
  %t102 = call <16 x float> @llvm.arithmetic.fence.v16f32(<16 x float> %t101)
  %t103 = getelementptr float, ptr %t92, i64 16
  call void @llvm.masked.store.v16f32.p0(<16 x float> %t102, ptr %t103, i32 1, <16 x i1> %t98)
  %t104 = add nuw nsw i64 %i6, 1
  %t105 = freeze i64 %t104
  br label %head5
done5:
  ret void
}
declare <16 x i32> @llvm.smax.v16i32(<16 x i32>, <16 x i32>)
declare <16 x i32> @llvm.umin.v16i32(<16 x i32>, <16 x i32>)
declare <16 x i32> @llvm.umax.v16i32(<16 x i32>, <16 x i32>)
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32, <16 x i1>, <16 x float>)
declare i32 @llvm.vector.reduce.smax.v16i32(<16 x i32>)
declare i32 @llvm.vector.reduce.umin.v16i32(<16 x i32>)
declare i32 @llvm.vector.reduce.umax.v16i32(<16 x i32>)
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x float> @llvm.x86.avx512.mask.scalef.ps.512(<16 x float>, <16 x float>, <16 x float>, i16, i32)
declare float @llvm.vector.reduce.fadd.v16f32(float, <16 x float>)
declare <16 x float> @llvm.arithmetic.fence.v16f32(<16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, i32, <16 x i1>)
