define void @kernel(ptr noalias %params, ptr noalias %values, i64 %first, i64 %last) {
entry:
  %row0 = alloca [24 x float], align 64
  %t1 = getelementptr ptr, ptr %params, i64 0
  %t2 = load ptr, ptr %t1
  %t3 = getelementptr ptr, ptr %params, i64 1
  %t4 = load ptr, ptr %t3
  br label %head5
head5:
  %i6 = phi i64 [ %first, %entry ], [ %t103, %done90 ]
  %t7 = icmp slt i64 %i6, %last
  br i1 %t7, label %body5, label %done5
body5:
  %t8 = mul i64 %i6, 24
  %t9 = getelementptr [4 x i8], ptr %t2, i64 %t8
  %t10 = freeze ptr %t9
  br label %head11
head11:
  %i12 = phi i64 [ 0, %body5 ], [ %t23, %body11 ]
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
  br label %head11
done11:
  %t24 = call i32 @llvm.vector.reduce.smax.v4i32(<4 x i32> %c13)
  %t25 = call i32 @llvm.vector.reduce.umin.v4i32(<4 x i32> %c14)
  %t26 = call i32 @llvm.vector.reduce.umax.v4i32(<4 x i32> %c15)
  %t27 = icmp sge i32 %t24, 0
  %t28 = select i1 %t27, i32 %t24, i32 %t25
  %t29 = icmp sgt i32 %t24, 2139095040
  %t30 = icmp ugt i32 %t26, -8388608
  %t31 = or i1 %t29, %t30
  %t32 = bitcast i32 %t28 to float
  %t33 = select i1 %t31, float 0x7FF8000000000000, float %t32
  %t34 = insertelement <4 x float> poison, float %t33, i64 0
  %t35 = shufflevector <4 x float> %t34, <4 x float> poison, <4 x i32> zeroinitializer
  %t36 = mul i64 %i6, 24
  %t37 = getelementptr [4 x i8], ptr %t4, i64 %t36
  %t38 = freeze ptr %t37
  br label %head39
head39:
  %i40 = phi i64 [ 0, %done11 ], [ %t86, %body39 ]
  %c41 = phi <4 x float> [ splat (float 0x8000000000000000), %done11 ], [ %t85, %body39 ]
  %t42 = icmp slt i64 %i40, 24
  br i1 %t42, label %body39, label %done39
body39:
  %t43 = getelementptr [4 x i8], ptr %t10, i64 %i40
  %t44 = getelementptr i8, ptr %t43, i64 96
  call void @llvm.prefetch.p0(ptr %t44, i32 0, i32 3, i32 1)
  %t45 = getelementptr [4 x i8], ptr %t38, i64 %i40
  call void @llvm.prefetch.p0(ptr %t45, i32 1, i32 3, i32 1)
  %t46 = getelementptr float, ptr %t10, i64 %i40
  %t47 = load <4 x float>, ptr %t46, align 1
  %t48 = fsub <4 x float> %t47, %t35
  %t49 = fcmp ogt <4 x float> %t48, splat (float 0x4056400000000000)
  %t50 = select <4 x i1> %t49, <4 x float> splat (float 0x4056400000000000), <4 x float> %t48
  %t51 = fcmp olt <4 x float> %t50, splat (float 0xC05A000000000000)
  %t52 = select <4 x i1> %t51, <4 x float> splat (float 0xC05A000000000000), <4 x float> %t50
  %t53 = fmul <4 x float> %t52, splat (float 0x3FF7154760000000)
  %t54 = fadd <4 x float> %t53, splat (float 0x4168001FC0000000)
  %t55 = fsub <4 x float> %t54, splat (float 0x4168001FC0000000)
  %t56 = fmul <4 x float> %t55, splat (float 0xBFE62E0000000000)
  %t57 = fadd <4 x float> %t56, %t52
  %t58 = fmul <4 x float> %t55, splat (float 0xBF00BFBE80000000)
  %t59 = fadd <4 x float> %t58, %t57
  %t60 = fsub <4 x float> %t57, %t59
  %t61 = fmul <4 x float> %t55, splat (float 0xBF00BFBE80000000)
  %t62 = fadd <4 x float> %t61, %t60
  %t63 = fmul <4 x float> %t59, splat (float 0x3F56D12540000000)
  %t64 = fadd <4 x float> %t63, splat (float 0x3F8120CBA0000000)
  %t65 = fmul <4 x float> %t64, %t59
  %t66 = fadd <4 x float> %t65, splat (float 0x3FA5555180000000)
  %t67 = fmul <4 x float> %t66, %t59
  %t68 = fadd <4 x float> %t67, splat (float 0x3FC5554DC0000000)
  %t69 = fmul <4 x float> %t68, %t59
  %t70 = fadd <4 x float> %t69, splat (float 0x3FE0000000000000)
  %t71 = fmul <4 x float> %t59, %t59
  %t72 = fmul <4 x float> %t70, %t71
  %t73 = fadd <4 x float> %t72, %t59
  %t74 = fadd <4 x float> %t73, splat (float 0x3FF0000000000000)
  %t75 = bitcast <4 x float> %t54 to <4 x i32>
  %t76 = ashr <4 x i32> %t75, splat (i32 1)
  %t77 = shl <4 x i32> %t76, splat (i32 23)
  %t78 = bitcast <4 x i32> %t77 to <4 x float>
  %t79 = fmul <4 x float> %t74, %t78
  %t80 = sub <4 x i32> %t75, %t76
  %t81 = shl <4 x i32> %t80, splat (i32 23)
  %t82 = bitcast <4 x i32> %t81 to <4 x float>
  %t83 = fmul <4 x float> %t79, %t82
  %t84 = getelementptr float, ptr %row0, i64 %i40
  store <4 x float> %t83, ptr %t84, align 4
  %t85 = fadd <4 x float> %c41, %t83
  %t86 = add nuw nsw i64 %i40, 4
  br label %head39
done39:
  %t87 = call reassoc float @llvm.vector.reduce.fadd.v4f32(float 0x8000000000000000, <4 x float> %c41)
  %t88 = insertelement <4 x float> poison, float %t87, i64 0
  %t89 = shufflevector <4 x float> %t88, <4 x float> poison, <4 x i32> zeroinitializer
  br label %head90
head90:
  %i91 = phi i64 [ 0, %done39 ], [ %t102, %body90 ]
  %t92 = icmp slt i64 %i91, 24
  br i1 %t92, label %body90, label %done90
body90:
  %t93 = getelementptr float, ptr %row0, i64 %i91
  %t94 = load <4 x float>, ptr %t93, align 4
  %t95 = fdiv <4 x float> %t94, %t89
  %t96 = getelementptr float, ptr %t38, i64 %i91
  store <4 x float> %t95, ptr %t96, align 1
  %t97 = add i64 %i91, 4
  %t98 = getelementptr float, ptr %row0, i64 %t97
  %t99 = load <4 x float>, ptr %t98, align 4
  %t100 = fdiv <4 x float> %t99, %t89
  %t101 = getelementptr float, ptr %t38, i64 %t97
  store <4 x float> %t100, ptr %t101, align 1
  %t102 = add nuw nsw i64 %i91, 8
  br label %head90
done90:
  %t103 = add nuw nsw i64 %i6, 1
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
