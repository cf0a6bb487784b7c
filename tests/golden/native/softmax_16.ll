define void @kernel(ptr noalias %params, ptr noalias %values, i64 %first, i64 %last) {
entry:
  %t1 = getelementptr ptr, ptr %params, i64 0
  %t2 = load ptr, ptr %t1
  %t3 = getelementptr ptr, ptr %params, i64 1
  %t4 = load ptr, ptr %t3
  br label %head5
head5:
  %i6 = phi i64 [ %first, %entry ], [ %t245, %after198 ]
  %t7 = icmp slt i64 %i6, %last
  br i1 %t7, label %body5, label %done5
body5:
  br label %head8
head8:
  %i9 = phi i64 [ 0, %body5 ], [ %t25, %done14 ]
  %c10 = phi <16 x float> [ splat (float 0xFFF0000000000000), %body5 ], [ %t24, %done14 ]
  %t11 = icmp slt i64 %i9, 16
  br i1 %t11, label %body8, label %done8
body8:
  %t12 = add i64 %i9, 512
  %t13 = call i64 @llvm.smin.i64(i64 %t12, i64 16)
  br label %head14
head14:
  %i15 = phi i64 [ %i9, %body8 ], [ %t23, %body14 ]
  %c16 = phi <16 x float> [ splat (float 0xFFF0000000000000), %body8 ], [ %t22, %body14 ]
  %t17 = icmp slt i64 %i15, %t13
  br i1 %t17, label %body14, label %done14
body14:
  %t18 = mul i64 %i6, 24
  %t19 = add i64 %t18, %i15
  %t20 = getelementptr float, ptr %t2, i64 %t19
  %t21 = load <16 x float>, ptr %t20, align 4
  %t22 = call <16 x float> @llvm.maximum.v16f32(<16 x float> %c16, <16 x float> %t21)
  %t23 = add nuw nsw i64 %i15, 16
  br label %head14
done14:
  %t24 = call <16 x float> @llvm.maximum.v16f32(<16 x float> %c10, <16 x float> %c16)
  %t25 = add nuw nsw i64 %i9, 512
  br label %head8
done8:
  %t26 = icmp ult <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>, splat (i64 8)
  %t27 = mul i64 %i6, 24
  %t28 = add i64 %t27, 16
  %t29 = getelementptr float, ptr %t2, i64 %t28
  %t30 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %t29, <16 x i1> %t26, <16 x float> zeroinitializer)
  %t31 = select <16 x i1> %t26, <16 x float> %t30, <16 x float> splat (float 0xFFF0000000000000)
  %t32 = call <16 x float> @llvm.maximum.v16f32(<16 x float> splat (float 0xFFF0000000000000), <16 x float> %t31)
  %t33 = call <16 x float> @llvm.maximum.v16f32(<16 x float> %c10, <16 x float> %t32)
  %t34 = shufflevector <16 x float> %t33, <16 x float> poison, <16 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t35 = call <16 x float> @llvm.maximum.v16f32(<16 x float> %t33, <16 x float> %t34)
  %t36 = shufflevector <16 x float> %t35, <16 x float> poison, <16 x i32> <i32 4, i32 5, i32 6, i32 7, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t37 = call <16 x float> @llvm.maximum.v16f32(<16 x float> %t35, <16 x float> %t36)
  %t38 = shufflevector <16 x float> %t37, <16 x float> poison, <16 x i32> <i32 2, i32 3, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t39 = call <16 x float> @llvm.maximum.v16f32(<16 x float> %t37, <16 x float> %t38)
  %t40 = shufflevector <16 x float> %t39, <16 x float> poison, <16 x i32> <i32 1, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t41 = call <16 x float> @llvm.maximum.v16f32(<16 x float> %t39, <16 x float> %t40)
  %t42 = extractelement <16 x float> %t41, i64 0
  br label %head43
head43:
  %i44 = phi i64 [ 0, %done8 ], [ %t94, %done49 ]
  %c45 = phi <16 x double> [ splat (double 0x8000000000000000), %done8 ], [ %t93, %done49 ]
  %t46 = icmp slt i64 %i44, 16
  br i1 %t46, label %body43, label %done43
body43:
  %t47 = add i64 %i44, 512
  %t48 = call i64 @llvm.smin.i64(i64 %t47, i64 16)
  br label %head49
head49:
  %i50 = phi i64 [ %i44, %body43 ], [ %t91, %body49 ]
  %c51 = phi <16 x float> [ splat (float 0x8000000000000000), %body43 ], [ %t90, %body49 ]
  %t52 = icmp slt i64 %i50, %t48
  br i1 %t52, label %body49, label %done49
body49:
  %t53 = mul i64 %i6, 24
  %t54 = add i64 %t53, %i50
  %t55 = getelementptr float, ptr %t2, i64 %t54
  %t56 = load <16 x float>, ptr %t55, align 4
  %t57 = insertelement <16 x float> poison, float %t42, i64 0
  %t58 = shufflevector <16 x float> %t57, <16 x float> poison, <16 x i32> zeroinitializer
  %t59 = fsub <16 x float> %t56, %t58
  %t60 = fcmp olt <16 x float> %t59, splat (float 0xC05A000000000000)
  %t61 = select <16 x i1> %t60, <16 x float> splat (float 0xC05A000000000000), <16 x float> %t59
  %t62 = fcmp ogt <16 x float> %t61, splat (float 0x4056400000000000)
  %t63 = select <16 x i1> %t62, <16 x float> splat (float 0x4056400000000000), <16 x float> %t61
  %t64 = fmul <16 x float> %t63, splat (float 0x3FF7154760000000)
  %t65 = call <16 x float> @llvm.rint.v16f32(<16 x float> %t64)
  %t66 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t65, <16 x float> splat (float 0xBFE62E4000000000), <16 x float> %t63)
  %t67 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t65, <16 x float> splat (float 0xBEB7F7D1C0000000), <16 x float> %t66)
  %t68 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3F2A01A020000000), <16 x float> %t67, <16 x float> splat (float 0x3F56C16C20000000))
  %t69 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t68, <16 x float> %t67, <16 x float> splat (float 0x3F81111120000000))
  %t70 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t69, <16 x float> %t67, <16 x float> splat (float 0x3FA5555560000000))
  %t71 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t70, <16 x float> %t67, <16 x float> splat (float 0x3FC5555560000000))
  %t72 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t71, <16 x float> %t67, <16 x float> splat (float 0x3FE0000000000000))
  %t73 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t72, <16 x float> %t67, <16 x float> splat (float 0x3FF0000000000000))
  %t74 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t73, <16 x float> %t67, <16 x float> splat (float 0x3FF0000000000000))
  %t75 = fcmp uno <16 x float> %t65, %t65
  %t76 = select <16 x i1> %t75, <16 x float> splat (float 0x0000000000000000), <16 x float> %t65
  %t77 = fptosi <16 x float> %t76 to <16 x i32>
  %t78 = ashr <16 x i32> %t77, splat (i32 1)
  %t79 = sub <16 x i32> %t77, %t78
  %t80 = add <16 x i32> %t78, splat (i32 127)
  %t81 = shl <16 x i32> %t80, splat (i32 23)
  %t82 = bitcast <16 x i32> %t81 to <16 x float>
  %t83 = fmul <16 x float> %t74, %t82
  %t84 = add <16 x i32> %t79, splat (i32 127)
  %t85 = shl <16 x i32> %t84, splat (i32 23)
  %t86 = bitcast <16 x i32> %t85 to <16 x float>
  %t87 = fmul <16 x float> %t83, %t86
  %t88 = fcmp uno <16 x float> %t59, %t59
  %t89 = select <16 x i1> %t88, <16 x float> %t59, <16 x float> %t87
  %t90 = fadd <16 x float> %c51, %t89
  %t91 = add nuw nsw i64 %i50, 16
  br label %head49
done49:
  %t92 = fpext <16 x float> %c51 to <16 x double>
  %t93 = fadd <16 x double> %c45, %t92
  %t94 = add nuw nsw i64 %i44, 512
  br label %head43
done43:
  %t95 = icmp ult <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>, splat (i64 8)
  %t96 = mul i64 %i6, 24
  %t97 = add i64 %t96, 16
  %t98 = getelementptr float, ptr %t2, i64 %t97
  %t99 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %t98, <16 x i1> %t95, <16 x float> zeroinitializer)
  %t100 = insertelement <16 x float> poison, float %t42, i64 0
  %t101 = shufflevector <16 x float> %t100, <16 x float> poison, <16 x i32> zeroinitializer
  %t102 = fsub <16 x float> %t99, %t101
  %t103 = fcmp olt <16 x float> %t102, splat (float 0xC05A000000000000)
  %t104 = select <16 x i1> %t103, <16 x float> splat (float 0xC05A000000000000), <16 x float> %t102
  %t105 = fcmp ogt <16 x float> %t104, splat (float 0x4056400000000000)
  %t106 = select <16 x i1> %t105, <16 x float> splat (float 0x4056400000000000), <16 x float> %t104
  %t107 = fmul <16 x float> %t106, splat (float 0x3FF7154760000000)
  %t108 = call <16 x float> @llvm.rint.v16f32(<16 x float> %t107)
  %t109 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t108, <16 x float> splat (float 0xBFE62E4000000000), <16 x float> %t106)
  %t110 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t108, <16 x float> splat (float 0xBEB7F7D1C0000000), <16 x float> %t109)
  %t111 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3F2A01A020000000), <16 x float> %t110, <16 x float> splat (float 0x3F56C16C20000000))
  %t112 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t111, <16 x float> %t110, <16 x float> splat (float 0x3F81111120000000))
  %t113 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t112, <16 x float> %t110, <16 x float> splat (float 0x3FA5555560000000))
  %t114 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t113, <16 x float> %t110, <16 x float> splat (float 0x3FC5555560000000))
  %t115 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t114, <16 x float> %t110, <16 x float> splat (float 0x3FE0000000000000))
  %t116 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t115, <16 x float> %t110, <16 x float> splat (float 0x3FF0000000000000))
  %t117 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t116, <16 x float> %t110, <16 x float> splat (float 0x3FF0000000000000))
  %t118 = fcmp uno <16 x float> %t108, %t108
  %t119 = select <16 x i1> %t118, <16 x float> splat (float 0x0000000000000000), <16 x float> %t108
  %t120 = fptosi <16 x float> %t119 to <16 x i32>
  %t121 = ashr <16 x i32> %t120, splat (i32 1)
  %t122 = sub <16 x i32> %t120, %t121
  %t123 = add <16 x i32> %t121, splat (i32 127)
  %t124 = shl <16 x i32> %t123, splat (i32 23)
  %t125 = bitcast <16 x i32> %t124 to <16 x float>
  %t126 = fmul <16 x float> %t117, %t125
  %t127 = add <16 x i32> %t122, splat (i32 127)
  %t128 = shl <16 x i32> %t127, splat (i32 23)
  %t129 = bitcast <16 x i32> %t128 to <16 x float>
  %t130 = fmul <16 x float> %t126, %t129
  %t131 = fcmp uno <16 x float> %t102, %t102
  %t132 = select <16 x i1> %t131, <16 x float> %t102, <16 x float> %t130
  %t133 = select <16 x i1> %t95, <16 x float> %t132, <16 x float> splat (float 0x8000000000000000)
  %t134 = fadd <16 x float> splat (float 0x8000000000000000), %t133
  %t135 = fpext <16 x float> %t134 to <16 x double>
  %t136 = fadd <16 x double> %c45, %t135
  %t137 = shufflevector <16 x double> %t136, <16 x double> poison, <16 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t138 = fadd <16 x double> %t136, %t137
  %t139 = shufflevector <16 x double> %t138, <16 x double> poison, <16 x i32> <i32 4, i32 5, i32 6, i32 7, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t140 = fadd <16 x double> %t138, %t139
  %t141 = shufflevector <16 x double> %t140, <16 x double> poison, <16 x i32> <i32 2, i32 3, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t142 = fadd <16 x double> %t140, %t141
  %t143 = shufflevector <16 x double> %t142, <16 x double> poison, <16 x i32> <i32 1, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t144 = fadd <16 x double> %t142, %t143
  %t145 = extractelement <16 x double> %t144, i64 0
  %t146 = fptrunc double %t145 to float
  %t147 = sub i64 24, 0
  %t148 = urem i64 %t147, 16
  %t149 = sub i64 24, %t148
  br label %head150
head150:
  %i151 = phi i64 [ 0, %done43 ], [ %t196, %body150 ]
  %t152 = icmp slt i64 %i151, %t149
  br i1 %t152, label %body150, label %done150
body150:
  %t153 = mul i64 %i6, 24
  %t154 = add i64 %t153, %i151
  %t155 = getelementptr float, ptr %t2, i64 %t154
  %t156 = load <16 x float>, ptr %t155, align 4
  %t157 = insertelement <16 x float> poison, float %t42, i64 0
  %t158 = shufflevector <16 x float> %t157, <16 x float> poison, <16 x i32> zeroinitializer
  %t159 = fsub <16 x float> %t156, %t158
  %t160 = fcmp olt <16 x float> %t159, splat (float 0xC05A000000000000)
  %t161 = select <16 x i1> %t160, <16 x float> splat (float 0xC05A000000000000), <16 x float> %t159
  %t162 = fcmp ogt <16 x float> %t161, splat (float 0x4056400000000000)
  %t163 = select <16 x i1> %t162, <16 x float> splat (float 0x4056400000000000), <16 x float> %t161
  %t164 = fmul <16 x float> %t163, splat (float 0x3FF7154760000000)
  %t165 = call <16 x float> @llvm.rint.v16f32(<16 x float> %t164)
  %t166 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t165, <16 x float> splat (float 0xBFE62E4000000000), <16 x float> %t163)
  %t167 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t165, <16 x float> splat (float 0xBEB7F7D1C0000000), <16 x float> %t166)
  %t168 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3F2A01A020000000), <16 x float> %t167, <16 x float> splat (float 0x3F56C16C20000000))
  %t169 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t168, <16 x float> %t167, <16 x float> splat (float 0x3F81111120000000))
  %t170 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t169, <16 x float> %t167, <16 x float> splat (float 0x3FA5555560000000))
  %t171 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t170, <16 x float> %t167, <16 x float> splat (float 0x3FC5555560000000))
  %t172 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t171, <16 x float> %t167, <16 x float> splat (float 0x3FE0000000000000))
  %t173 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t172, <16 x float> %t167, <16 x float> splat (float 0x3FF0000000000000))
  %t174 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t173, <16 x float> %t167, <16 x float> splat (float 0x3FF0000000000000))
  %t175 = fcmp uno <16 x float> %t165, %t165
  %t176 = select <16 x i1> %t175, <16 x float> splat (float 0x0000000000000000), <16 x float> %t165
  %t177 = fptosi <16 x float> %t176 to <16 x i32>
  %t178 = ashr <16 x i32> %t177, splat (i32 1)
  %t179 = sub <16 x i32> %t177, %t178
  %t180 = add <16 x i32> %t178, splat (i32 127)
  %t181 = shl <16 x i32> %t180, splat (i32 23)
  %t182 = bitcast <16 x i32> %t181 to <16 x float>
  %t183 = fmul <16 x float> %t174, %t182
  %t184 = add <16 x i32> %t179, splat (i32 127)
  %t185 = shl <16 x i32> %t184, splat (i32 23)
  %t186 = bitcast <16 x i32> %t185 to <16 x float>
  %t187 = fmul <16 x float> %t183, %t186
  %t188 = fcmp uno <16 x float> %t159, %t159
  %t189 = select <16 x i1> %t188, <16 x float> %t159, <16 x float> %t187
  %t190 = insertelement <16 x float> poison, float %t146, i64 0
  %t191 = shufflevector <16 x float> %t190, <16 x float> poison, <16 x i32> zeroinitializer
  %t192 = fdiv <16 x float> %t189, %t191
  %t193 = mul i64 %i6, 24
  %t194 = add i64 %t193, %i151
  %t195 = getelementptr float, ptr %t4, i64 %t194
  store <16 x float> %t192, ptr %t195, align 4
  %t196 = add nuw nsw i64 %i151, 16
  br label %head150
done150:
  %t197 = icmp ne i64 %t148, 0
  br i1 %t197, label %then198, label %after198
then198:
  %t199 = insertelement <16 x i64> poison, i64 %t148, i64 0
  %t200 = shufflevector <16 x i64> %t199, <16 x i64> poison, <16 x i32> zeroinitializer
  %t201 = icmp ult <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>, %t200
  %t202 = mul i64 %i6, 24
  %t203 = add i64 %t202, %t149
  %t204 = getelementptr float, ptr %t2, i64 %t203
  %t205 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %t204, <16 x i1> %t201, <16 x float> zeroinitializer)
  %t206 = insertelement <16 x float> poison, float %t42, i64 0
  %t207 = shufflevector <16 x float> %t206, <16 x float> poison, <16 x i32> zeroinitializer
  %t208 = fsub <16 x float> %t205, %t207
  %t209 = fcmp olt <16 x float> %t208, splat (float 0xC05A000000000000)
  %t210 = select <16 x i1> %t209, <16 x float> splat (float 0xC05A000000000000), <16 x float> %t208
  %t211 = fcmp ogt <16 x float> %t210, splat (float 0x4056400000000000)
  %t212 = select <16 x i1> %t211, <16 x float> splat (float 0x4056400000000000), <16 x float> %t210
  %t213 = fmul <16 x float> %t212, splat (float 0x3FF7154760000000)
  %t214 = call <16 x float> @llvm.rint.v16f32(<16 x float> %t213)
  %t215 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t214, <16 x float> splat (float 0xBFE62E4000000000), <16 x float> %t212)
  %t216 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t214, <16 x float> splat (float 0xBEB7F7D1C0000000), <16 x float> %t215)
  %t217 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3F2A01A020000000), <16 x float> %t216, <16 x float> splat (float 0x3F56C16C20000000))
  %t218 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t217, <16 x float> %t216, <16 x float> splat (float 0x3F81111120000000))
  %t219 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t218, <16 x float> %t216, <16 x float> splat (float 0x3FA5555560000000))
  %t220 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t219, <16 x float> %t216, <16 x float> splat (float 0x3FC5555560000000))
  %t221 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t220, <16 x float> %t216, <16 x float> splat (float 0x3FE0000000000000))
  %t222 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t221, <16 x float> %t216, <16 x float> splat (float 0x3FF0000000000000))
  %t223 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t222, <16 x float> %t216, <16 x float> splat (float 0x3FF0000000000000))
  %t224 = fcmp uno <16 x float> %t214, %t214
  %t225 = select <16 x i1> %t224, <16 x float> splat (float 0x0000000000000000), <16 x float> %t214
  %t226 = fptosi <16 x float> %t225 to <16 x i32>
  %t227 = ashr <16 x i32> %t226, splat (i32 1)
  %t228 = sub <16 x i32> %t226, %t227
  %t229 = add <16 x i32> %t227, splat (i32 127)
  %t230 = shl <16 x i32> %t229, splat (i32 23)
  %t231 = bitcast <16 x i32> %t230 to <16 x float>
  %t232 = fmul <16 x float> %t223, %t231
  %t233 = add <16 x i32> %t228, splat (i32 127)
  %t234 = shl <16 x i32> %t233, splat (i32 23)
  %t235 = bitcast <16 x i32> %t234 to <16 x float>
  %t236 = fmul <16 x float> %t232, %t235
  %t237 = fcmp uno <16 x float> %t208, %t208
  %t238 = select <16 x i1> %t237, <16 x float> %t208, <16 x float> %t236
  %t239 = insertelement <16 x float> poison, float %t146, i64 0
  %t240 = shufflevector <16 x float> %t239, <16 x float> poison, <16 x i32> zeroinitializer
  %t241 = fdiv <16 x float> %t238, %t240
  %t242 = mul i64 %i6, 24
  %t243 = add i64 %t242, %t149
  %t244 = getelementptr float, ptr %t4, i64 %t243
  call void @llvm.masked.store.v16f32.p0(<16 x float> %t241, ptr align 4 %t244, <16 x i1> %t201)
  br label %after198
after198:
  %t245 = add nuw nsw i64 %i6, 1
  br label %head5
done5:
  ret void
}
declare i64 @llvm.smin.i64(i64, i64)
declare <16 x float> @llvm.maximum.v16f32(<16 x float>, <16 x float>)
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)
declare <16 x float> @llvm.rint.v16f32(<16 x float>)
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, <16 x i1>)
