define void @kernel(ptr noalias %params, ptr noalias %values, i64 %first, i64 %last) {
entry:
  %row0 = alloca [32 x float], align 64
  %t1 = getelementptr ptr, ptr %params, i64 0
  %t2 = load ptr, ptr %t1
  %t3 = getelementptr ptr, ptr %params, i64 1
  %t4 = load ptr, ptr %t3
  br label %head5
head5:
  %i6 = phi i64 [ %first, %entry ], [ %t107, %body5 ]
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
  %t19 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 1 %t18, <16 x i1> %t17, <16 x float> zeroinitializer)
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
  %t58 = shufflevector <16 x float> %t56, <16 x float> poison, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %t59 = shufflevector <16 x float> %t57, <16 x float> poison, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %t60 = call <16 x float> @llvm.x86.avx512.mask.scalef.ps.512(<16 x float> %t58, <16 x float> %t59, <16 x float> %t58, i16 -1, i32 4)
  %t61 = getelementptr float, ptr %row0, i64 0
  store <16 x float> %t60, ptr %t61, align 4
  %t62 = fadd <16 x float> splat (float 0x8000000000000000), %t60
  %t63 = icmp ult <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, splat (i32 8)
  %t64 = getelementptr float, ptr %t10, i64 16
  %t65 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 1 %t64, <16 x i1> %t63, <16 x float> zeroinitializer)
  %t66 = fsub <16 x float> %t65, %t36
  %t67 = fcmp ogt <16 x float> %t66, splat (float 0x4056400000000000)
  %t68 = select <16 x i1> %t67, <16 x float> splat (float 0x4056400000000000), <16 x float> %t66
  %t69 = fcmp olt <16 x float> %t68, splat (float 0xC05A000000000000)
  %t70 = select <16 x i1> %t69, <16 x float> splat (float 0xC05A000000000000), <16 x float> %t68
  %t71 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t70, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001FC0000000))
  %t72 = fsub <16 x float> %t71, splat (float 0x4168001FC0000000)
  %t73 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t72, <16 x float> splat (float 0xBFE62E0000000000), <16 x float> %t70)
  %t74 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t72, <16 x float> splat (float 0xBF00BFBE80000000), <16 x float> %t73)
  %t75 = fsub <16 x float> %t73, %t74
  %t76 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t72, <16 x float> splat (float 0xBF00BFBE80000000), <16 x float> %t75)
  %t77 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t74, <16 x float> splat (float 0x3F56D12540000000), <16 x float> splat (float 0x3F8120CBA0000000))
  %t78 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t77, <16 x float> %t74, <16 x float> splat (float 0x3FA5555180000000))
  %t79 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t78, <16 x float> %t74, <16 x float> splat (float 0x3FC5554DC0000000))
  %t80 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t79, <16 x float> %t74, <16 x float> splat (float 0x3FE0000000000000))
  %t81 = fmul <16 x float> %t74, %t74
  %t82 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t80, <16 x float> %t81, <16 x float> %t74)
  %t83 = fadd <16 x float> %t82, splat (float 0x3FF0000000000000)
  %t84 = fsub <16 x float> %t71, splat (float 0x4168001FC0000000)
  %t85 = shufflevector <16 x float> %t83, <16 x float> poison, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %t86 = shufflevector <16 x float> %t84, <16 x float> poison, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %t87 = call <16 x float> @llvm.x86.avx512.mask.scalef.ps.512(<16 x float> %t85, <16 x float> %t86, <16 x float> %t85, i16 -1, i32 4)
  %t88 = getelementptr float, ptr %row0, i64 16
  store <16 x float> %t87, ptr %t88, align 4
  %t89 = select <16 x i1> %t63, <16 x float> %t87, <16 x float> splat (float 0x8000000000000000)
  %t90 = fadd <16 x float> %t62, %t89
  %t91 = call reassoc float @llvm.vector.reduce.fadd.v16f32(float 0x8000000000000000, <16 x float> %t90)
  %t92 = insertelement <16 x float> poison, float %t91, i64 0
  %t93 = shufflevector <16 x float> %t92, <16 x float> poison, <16 x i32> zeroinitializer
  %t94 = mul i64 %i6, 24
  %t95 = getelementptr [4 x i8], ptr %t4, i64 %t94
  %t96 = freeze ptr %t95
  %t97 = getelementptr float, ptr %row0, i64 0
  %t98 = load <16 x float>, ptr %t97, align 4
  %t99 = fdiv <16 x float> %t98, %t93
  %t100 = getelementptr float, ptr %t96, i64 0
  store <16 x float> %t99, ptr %t100, align 1
  %t101 = icmp ult <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, splat (i32 8)
  %t102 = getelementptr float, ptr %row0, i64 16
  %t103 = load <16 x float>, ptr %t102, align 4
  %t104 = fdiv <16 x float> %t103, %t93
  %t105 = getelementptr float, ptr %t96, i64 16
  call void @llvm.masked.store.v16f32.p0(<16 x float> %t104, ptr align 1 %t105, <16 x i1> %t101)
  %t106 = add nuw nsw i64 %i6, 1
  %t107 = freeze i64 %t106
  br label %head5
done5:
  ret void
}
declare <16 x i32> @llvm.smax.v16i32(<16 x i32>, <16 x i32>)
declare <16 x i32> @llvm.umin.v16i32(<16 x i32>, <16 x i32>)
declare <16 x i32> @llvm.umax.v16i32(<16 x i32>, <16 x i32>)
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)
declare i32 @llvm.vector.reduce.smax.v16i32(<16 x i32>)
declare i32 @llvm.vector.reduce.umin.v16i32(<16 x i32>)
declare i32 @llvm.vector.reduce.umax.v16i32(<16 x i32>)
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x float> @llvm.x86.avx512.mask.scalef.ps.512(<16 x float>, <16 x float>, <16 x float>, i16, i32)
declare float @llvm.vector.reduce.fadd.v16f32(float, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, <16 x i1>)
