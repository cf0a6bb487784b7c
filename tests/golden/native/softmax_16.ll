define void @kernel(ptr noalias %params, ptr noalias %values, i64 %first, i64 %last) {
entry:
  %row0 = alloca [32 x float], align 64
  %t1 = getelementptr ptr, ptr %params, i64 0
  %t2 = load ptr, ptr %t1
  %t3 = getelementptr ptr, ptr %params, i64 1
  %t4 = load ptr, ptr %t3
  br label %head5
head5:
  %i6 = phi i64 [ %first, %entry ], [ %t117, %body5 ]
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
  %t57 = bitcast <16 x float> %t44 to <16 x i32>
  %t58 = ashr <16 x i32> %t57, splat (i32 1)
  %t59 = shl <16 x i32> %t58, splat (i32 23)
  %t60 = bitcast <16 x i32> %t59 to <16 x float>
  %t61 = fmul <16 x float> %t56, %t60
  %t62 = sub <16 x i32> %t57, %t58
  %t63 = shl <16 x i32> %t62, splat (i32 23)
  %t64 = bitcast <16 x i32> %t63 to <16 x float>
  %t65 = fmul <16 x float> %t61, %t64
  %t66 = getelementptr float, ptr %row0, i64 0
  store <16 x float> %t65, ptr %t66, align 4
  %t67 = fadd <16 x float> splat (float 0x8000000000000000), %t65
  %t68 = icmp ult <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, splat (i32 8)
  %t69 = getelementptr float, ptr %t10, i64 16
  %t70 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 1 %t69, <16 x i1> %t68, <16 x float> zeroinitializer)
  %t71 = fsub <16 x float> %t70, %t36
  %t72 = fcmp ogt <16 x float> %t71, splat (float 0x4056400000000000)
  %t73 = select <16 x i1> %t72, <16 x float> splat (float 0x4056400000000000), <16 x float> %t71
  %t74 = fcmp olt <16 x float> %t73, splat (float 0xC05A000000000000)
  %t75 = select <16 x i1> %t74, <16 x float> splat (float 0xC05A000000000000), <16 x float> %t73
  %t76 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t75, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001FC0000000))
  %t77 = fsub <16 x float> %t76, splat (float 0x4168001FC0000000)
  %t78 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t77, <16 x float> splat (float 0xBFE62E0000000000), <16 x float> %t75)
  %t79 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t77, <16 x float> splat (float 0xBF00BFBE80000000), <16 x float> %t78)
  %t80 = fsub <16 x float> %t78, %t79
  %t81 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t77, <16 x float> splat (float 0xBF00BFBE80000000), <16 x float> %t80)
  %t82 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t79, <16 x float> splat (float 0x3F56D12540000000), <16 x float> splat (float 0x3F8120CBA0000000))
  %t83 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t82, <16 x float> %t79, <16 x float> splat (float 0x3FA5555180000000))
  %t84 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t83, <16 x float> %t79, <16 x float> splat (float 0x3FC5554DC0000000))
  %t85 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t84, <16 x float> %t79, <16 x float> splat (float 0x3FE0000000000000))
  %t86 = fmul <16 x float> %t79, %t79
  %t87 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t85, <16 x float> %t86, <16 x float> %t79)
  %t88 = fadd <16 x float> %t87, splat (float 0x3FF0000000000000)
  %t89 = bitcast <16 x float> %t76 to <16 x i32>
  %t90 = ashr <16 x i32> %t89, splat (i32 1)
  %t91 = shl <16 x i32> %t90, splat (i32 23)
  %t92 = bitcast <16 x i32> %t91 to <16 x float>
  %t93 = fmul <16 x float> %t88, %t92
  %t94 = sub <16 x i32> %t89, %t90
  %t95 = shl <16 x i32> %t94, splat (i32 23)
  %t96 = bitcast <16 x i32> %t95 to <16 x float>
  %t97 = fmul <16 x float> %t93, %t96
  %t98 = getelementptr float, ptr %row0, i64 16
  store <16 x float> %t97, ptr %t98, align 4
  %t99 = select <16 x i1> %t68, <16 x float> %t97, <16 x float> splat (float 0x8000000000000000)
  %t100 = fadd <16 x float> %t67, %t99
  %t101 = call reassoc float @llvm.vector.reduce.fadd.v16f32(float 0x8000000000000000, <16 x float> %t100)
  %t102 = insertelement <16 x float> poison, float %t101, i64 0
  %t103 = shufflevector <16 x float> %t102, <16 x float> poison, <16 x i32> zeroinitializer
  %t104 = mul i64 %i6, 24
  %t105 = getelementptr [4 x i8], ptr %t4, i64 %t104
  %t106 = freeze ptr %t105
  %t107 = getelementptr float, ptr %row0, i64 0
  %t108 = load <16 x float>, ptr %t107, align 4
  %t109 = fdiv <16 x float> %t108, %t103
  %t110 = getelementptr float, ptr %t106, i64 0
  store <16 x float> %t109, ptr %t110, align 1
  %t111 = icmp ult <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, splat (i32 8)
  %t112 = getelementptr float, ptr %row0, i64 16
  %t113 = load <16 x float>, ptr %t112, align 4
  %t114 = fdiv <16 x float> %t113, %t103
  %t115 = getelementptr float, ptr %t106, i64 16
  call void @llvm.masked.store.v16f32.p0(<16 x float> %t114, ptr align 1 %t115, <16 x i1> %t111)
  %t116 = add nuw nsw i64 %i6, 1
  %t117 = freeze i64 %t116
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
declare float @llvm.vector.reduce.fadd.v16f32(float, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, <16 x i1>)
