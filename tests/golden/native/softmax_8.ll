define void @kernel(ptr noalias %params, ptr noalias %values, i64 %first, i64 %last) {
entry:
  %t1 = getelementptr ptr, ptr %params, i64 0
  %t2 = load ptr, ptr %t1
  %t3 = getelementptr ptr, ptr %params, i64 1
  %t4 = load ptr, ptr %t3
  br label %head5
head5:
  %i6 = phi i64 [ %first, %entry ], [ %t191, %after144 ]
  %t7 = icmp slt i64 %i6, %last
  br i1 %t7, label %body5, label %done5
body5:
  br label %head8
head8:
  %i9 = phi i64 [ 0, %body5 ], [ %t25, %done14 ]
  %c10 = phi <8 x float> [ splat (float 0xFFF0000000000000), %body5 ], [ %t24, %done14 ]
  %t11 = icmp slt i64 %i9, 24
  br i1 %t11, label %body8, label %done8
body8:
  %t12 = add i64 %i9, 256
  %t13 = call i64 @llvm.smin.i64(i64 %t12, i64 24)
  br label %head14
head14:
  %i15 = phi i64 [ %i9, %body8 ], [ %t23, %body14 ]
  %c16 = phi <8 x float> [ splat (float 0xFFF0000000000000), %body8 ], [ %t22, %body14 ]
  %t17 = icmp slt i64 %i15, %t13
  br i1 %t17, label %body14, label %done14
body14:
  %t18 = mul i64 %i6, 24
  %t19 = add i64 %t18, %i15
  %t20 = getelementptr float, ptr %t2, i64 %t19
  %t21 = load <8 x float>, ptr %t20, align 4
  %t22 = call <8 x float> @llvm.maximum.v8f32(<8 x float> %c16, <8 x float> %t21)
  %t23 = add nuw nsw i64 %i15, 8
  br label %head14
done14:
  %t24 = call <8 x float> @llvm.maximum.v8f32(<8 x float> %c10, <8 x float> %c16)
  %t25 = add nuw nsw i64 %i9, 256
  br label %head8
done8:
  %t26 = shufflevector <8 x float> %c10, <8 x float> poison, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 0, i32 0, i32 0, i32 0>
  %t27 = call <8 x float> @llvm.maximum.v8f32(<8 x float> %c10, <8 x float> %t26)
  %t28 = shufflevector <8 x float> %t27, <8 x float> poison, <8 x i32> <i32 2, i32 3, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t29 = call <8 x float> @llvm.maximum.v8f32(<8 x float> %t27, <8 x float> %t28)
  %t30 = shufflevector <8 x float> %t29, <8 x float> poison, <8 x i32> <i32 1, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t31 = call <8 x float> @llvm.maximum.v8f32(<8 x float> %t29, <8 x float> %t30)
  %t32 = extractelement <8 x float> %t31, i64 0
  br label %head33
head33:
  %i34 = phi i64 [ 0, %done8 ], [ %t84, %done39 ]
  %c35 = phi <8 x double> [ splat (double 0x8000000000000000), %done8 ], [ %t83, %done39 ]
  %t36 = icmp slt i64 %i34, 24
  br i1 %t36, label %body33, label %done33
body33:
  %t37 = add i64 %i34, 256
  %t38 = call i64 @llvm.smin.i64(i64 %t37, i64 24)
  br label %head39
head39:
  %i40 = phi i64 [ %i34, %body33 ], [ %t81, %body39 ]
  %c41 = phi <8 x float> [ splat (float 0x8000000000000000), %body33 ], [ %t80, %body39 ]
  %t42 = icmp slt i64 %i40, %t38
  br i1 %t42, label %body39, label %done39
body39:
  %t43 = mul i64 %i6, 24
  %t44 = add i64 %t43, %i40
  %t45 = getelementptr float, ptr %t2, i64 %t44
  %t46 = load <8 x float>, ptr %t45, align 4
  %t47 = insertelement <8 x float> poison, float %t32, i64 0
  %t48 = shufflevector <8 x float> %t47, <8 x float> poison, <8 x i32> zeroinitializer
  %t49 = fsub <8 x float> %t46, %t48
  %t50 = fcmp olt <8 x float> %t49, splat (float 0xC05A000000000000)
  %t51 = select <8 x i1> %t50, <8 x float> splat (float 0xC05A000000000000), <8 x float> %t49
  %t52 = fcmp ogt <8 x float> %t51, splat (float 0x4056400000000000)
  %t53 = select <8 x i1> %t52, <8 x float> splat (float 0x4056400000000000), <8 x float> %t51
  %t54 = fmul <8 x float> %t53, splat (float 0x3FF7154760000000)
  %t55 = call <8 x float> @llvm.rint.v8f32(<8 x float> %t54)
  %t56 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t55, <8 x float> splat (float 0xBFE62E4000000000), <8 x float> %t53)
  %t57 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t55, <8 x float> splat (float 0xBEB7F7D1C0000000), <8 x float> %t56)
  %t58 = call <8 x float> @llvm.fma.v8f32(<8 x float> splat (float 0x3F2A01A020000000), <8 x float> %t57, <8 x float> splat (float 0x3F56C16C20000000))
  %t59 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t58, <8 x float> %t57, <8 x float> splat (float 0x3F81111120000000))
  %t60 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t59, <8 x float> %t57, <8 x float> splat (float 0x3FA5555560000000))
  %t61 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t60, <8 x float> %t57, <8 x float> splat (float 0x3FC5555560000000))
  %t62 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t61, <8 x float> %t57, <8 x float> splat (float 0x3FE0000000000000))
  %t63 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t62, <8 x float> %t57, <8 x float> splat (float 0x3FF0000000000000))
  %t64 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t63, <8 x float> %t57, <8 x float> splat (float 0x3FF0000000000000))
  %t65 = fcmp uno <8 x float> %t55, %t55
  %t66 = select <8 x i1> %t65, <8 x float> splat (float 0x0000000000000000), <8 x float> %t55
  %t67 = fptosi <8 x float> %t66 to <8 x i32>
  %t68 = ashr <8 x i32> %t67, splat (i32 1)
  %t69 = sub <8 x i32> %t67, %t68
  %t70 = add <8 x i32> %t68, splat (i32 127)
  %t71 = shl <8 x i32> %t70, splat (i32 23)
  %t72 = bitcast <8 x i32> %t71 to <8 x float>
  %t73 = fmul <8 x float> %t64, %t72
  %t74 = add <8 x i32> %t69, splat (i32 127)
  %t75 = shl <8 x i32> %t74, splat (i32 23)
  %t76 = bitcast <8 x i32> %t75 to <8 x float>
  %t77 = fmul <8 x float> %t73, %t76
  %t78 = fcmp uno <8 x float> %t49, %t49
  %t79 = select <8 x i1> %t78, <8 x float> %t49, <8 x float> %t77
  %t80 = fadd <8 x float> %c41, %t79
  %t81 = add nuw nsw i64 %i40, 8
  br label %head39
done39:
  %t82 = fpext <8 x float> %c41 to <8 x double>
  %t83 = fadd <8 x double> %c35, %t82
  %t84 = add nuw nsw i64 %i34, 256
  br label %head33
done33:
  %t85 = shufflevector <8 x double> %c35, <8 x double> poison, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 0, i32 0, i32 0, i32 0>
  %t86 = fadd <8 x double> %c35, %t85
  %t87 = shufflevector <8 x double> %t86, <8 x double> poison, <8 x i32> <i32 2, i32 3, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t88 = fadd <8 x double> %t86, %t87
  %t89 = shufflevector <8 x double> %t88, <8 x double> poison, <8 x i32> <i32 1, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t90 = fadd <8 x double> %t88, %t89
  %t91 = extractelement <8 x double> %t90, i64 0
  %t92 = fptrunc double %t91 to float
  %t93 = sub i64 24, 0
  %t94 = urem i64 %t93, 8
  %t95 = sub i64 24, %t94
  br label %head96
head96:
  %i97 = phi i64 [ 0, %done33 ], [ %t142, %body96 ]
  %t98 = icmp slt i64 %i97, %t95
  br i1 %t98, label %body96, label %done96
body96:
  %t99 = mul i64 %i6, 24
  %t100 = add i64 %t99, %i97
  %t101 = getelementptr float, ptr %t2, i64 %t100
  %t102 = load <8 x float>, ptr %t101, align 4
  %t103 = insertelement <8 x float> poison, float %t32, i64 0
  %t104 = shufflevector <8 x float> %t103, <8 x float> poison, <8 x i32> zeroinitializer
  %t105 = fsub <8 x float> %t102, %t104
  %t106 = fcmp olt <8 x float> %t105, splat (float 0xC05A000000000000)
  %t107 = select <8 x i1> %t106, <8 x float> splat (float 0xC05A000000000000), <8 x float> %t105
  %t108 = fcmp ogt <8 x float> %t107, splat (float 0x4056400000000000)
  %t109 = select <8 x i1> %t108, <8 x float> splat (float 0x4056400000000000), <8 x float> %t107
  %t110 = fmul <8 x float> %t109, splat (float 0x3FF7154760000000)
  %t111 = call <8 x float> @llvm.rint.v8f32(<8 x float> %t110)
  %t112 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t111, <8 x float> splat (float 0xBFE62E4000000000), <8 x float> %t109)
  %t113 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t111, <8 x float> splat (float 0xBEB7F7D1C0000000), <8 x float> %t112)
  %t114 = call <8 x float> @llvm.fma.v8f32(<8 x float> splat (float 0x3F2A01A020000000), <8 x float> %t113, <8 x float> splat (float 0x3F56C16C20000000))
  %t115 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t114, <8 x float> %t113, <8 x float> splat (float 0x3F81111120000000))
  %t116 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t115, <8 x float> %t113, <8 x float> splat (float 0x3FA5555560000000))
  %t117 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t116, <8 x float> %t113, <8 x float> splat (float 0x3FC5555560000000))
  %t118 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t117, <8 x float> %t113, <8 x float> splat (float 0x3FE0000000000000))
  %t119 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t118, <8 x float> %t113, <8 x float> splat (float 0x3FF0000000000000))
  %t120 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t119, <8 x float> %t113, <8 x float> splat (float 0x3FF0000000000000))
  %t121 = fcmp uno <8 x float> %t111, %t111
  %t122 = select <8 x i1> %t121, <8 x float> splat (float 0x0000000000000000), <8 x float> %t111
  %t123 = fptosi <8 x float> %t122 to <8 x i32>
  %t124 = ashr <8 x i32> %t123, splat (i32 1)
  %t125 = sub <8 x i32> %t123, %t124
  %t126 = add <8 x i32> %t124, splat (i32 127)
  %t127 = shl <8 x i32> %t126, splat (i32 23)
  %t128 = bitcast <8 x i32> %t127 to <8 x float>
  %t129 = fmul <8 x float> %t120, %t128
  %t130 = add <8 x i32> %t125, splat (i32 127)
  %t131 = shl <8 x i32> %t130, splat (i32 23)
  %t132 = bitcast <8 x i32> %t131 to <8 x float>
  %t133 = fmul <8 x float> %t129, %t132
  %t134 = fcmp uno <8 x float> %t105, %t105
  %t135 = select <8 x i1> %t134, <8 x float> %t105, <8 x float> %t133
  %t136 = insertelement <8 x float> poison, float %t92, i64 0
  %t137 = shufflevector <8 x float> %t136, <8 x float> poison, <8 x i32> zeroinitializer
  %t138 = fdiv <8 x float> %t135, %t137
  %t139 = mul i64 %i6, 24
  %t140 = add i64 %t139, %i97
  %t141 = getelementptr float, ptr %t4, i64 %t140
  store <8 x float> %t138, ptr %t141, align 4
  %t142 = add nuw nsw i64 %i97, 8
  br label %head96
done96:
  %t143 = icmp ne i64 %t94, 0
  br i1 %t143, label %then144, label %after144
then144:
  %t145 = insertelement <8 x i64> poison, i64 %t94, i64 0
  %t146 = shufflevector <8 x i64> %t145, <8 x i64> poison, <8 x i32> zeroinitializer
  %t147 = icmp ult <8 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7>, %t146
  %t148 = mul i64 %i6, 24
  %t149 = add i64 %t148, %t95
  %t150 = getelementptr float, ptr %t2, i64 %t149
  %t151 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %t150, <8 x i1> %t147, <8 x float> zeroinitializer)
  %t152 = insertelement <8 x float> poison, float %t32, i64 0
  %t153 = shufflevector <8 x float> %t152, <8 x float> poison, <8 x i32> zeroinitializer
  %t154 = fsub <8 x float> %t151, %t153
  %t155 = fcmp olt <8 x float> %t154, splat (float 0xC05A000000000000)
  %t156 = select <8 x i1> %t155, <8 x float> splat (float 0xC05A000000000000), <8 x float> %t154
  %t157 = fcmp ogt <8 x float> %t156, splat (float 0x4056400000000000)
  %t158 = select <8 x i1> %t157, <8 x float> splat (float 0x4056400000000000), <8 x float> %t156
  %t159 = fmul <8 x float> %t158, splat (float 0x3FF7154760000000)
  %t160 = call <8 x float> @llvm.rint.v8f32(<8 x float> %t159)
  %t161 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t160, <8 x float> splat (float 0xBFE62E4000000000), <8 x float> %t158)
  %t162 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t160, <8 x float> splat (float 0xBEB7F7D1C0000000), <8 x float> %t161)
  %t163 = call <8 x float> @llvm.fma.v8f32(<8 x float> splat (float 0x3F2A01A020000000), <8 x float> %t162, <8 x float> splat (float 0x3F56C16C20000000))
  %t164 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t163, <8 x float> %t162, <8 x float> splat (float 0x3F81111120000000))
  %t165 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t164, <8 x float> %t162, <8 x float> splat (float 0x3FA5555560000000))
  %t166 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t165, <8 x float> %t162, <8 x float> splat (float 0x3FC5555560000000))
  %t167 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t166, <8 x float> %t162, <8 x float> splat (float 0x3FE0000000000000))
  %t168 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t167, <8 x float> %t162, <8 x float> splat (float 0x3FF0000000000000))
  %t169 = call <8 x float> @llvm.fma.v8f32(<8 x float> %t168, <8 x float> %t162, <8 x float> splat (float 0x3FF0000000000000))
  %t170 = fcmp uno <8 x float> %t160, %t160
  %t171 = select <8 x i1> %t170, <8 x float> splat (float 0x0000000000000000), <8 x float> %t160
  %t172 = fptosi <8 x float> %t171 to <8 x i32>
  %t173 = ashr <8 x i32> %t172, splat (i32 1)
  %t174 = sub <8 x i32> %t172, %t173
  %t175 = add <8 x i32> %t173, splat (i32 127)
  %t176 = shl <8 x i32> %t175, splat (i32 23)
  %t177 = bitcast <8 x i32> %t176 to <8 x float>
  %t178 = fmul <8 x float> %t169, %t177
  %t179 = add <8 x i32> %t174, splat (i32 127)
  %t180 = shl <8 x i32> %t179, splat (i32 23)
  %t181 = bitcast <8 x i32> %t180 to <8 x float>
  %t182 = fmul <8 x float> %t178, %t181
  %t183 = fcmp uno <8 x float> %t154, %t154
  %t184 = select <8 x i1> %t183, <8 x float> %t154, <8 x float> %t182
  %t185 = insertelement <8 x float> poison, float %t92, i64 0
  %t186 = shufflevector <8 x float> %t185, <8 x float> poison, <8 x i32> zeroinitializer
  %t187 = fdiv <8 x float> %t184, %t186
  %t188 = mul i64 %i6, 24
  %t189 = add i64 %t188, %t95
  %t190 = getelementptr float, ptr %t4, i64 %t189
  call void @llvm.masked.store.v8f32.p0(<8 x float> %t187, ptr align 4 %t190, <8 x i1> %t147)
  br label %after144
after144:
  %t191 = add nuw nsw i64 %i6, 1
  br label %head5
done5:
  ret void
}
declare i64 @llvm.smin.i64(i64, i64)
declare <8 x float> @llvm.maximum.v8f32(<8 x float>, <8 x float>)
declare <8 x float> @llvm.rint.v8f32(<8 x float>)
declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)
declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, <8 x i1>, <8 x float>)
declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, <8 x i1>)
