define void @kernel(ptr noalias %params, ptr noalias %values, i64 %first, i64 %last) {
entry:
  %t1 = getelementptr ptr, ptr %params, i64 0
  %t2 = load ptr, ptr %t1
  %t3 = getelementptr ptr, ptr %params, i64 1
  %t4 = load ptr, ptr %t3
  %t5 = alloca [32 x float], align 64
  br label %head6
head6:
  %i7 = phi i64 [ %first, %entry ], [ %t178, %after166 ]
  %t8 = icmp slt i64 %i7, %last
  br i1 %t8, label %body6, label %done6
body6:
  br label %head9
head9:
  %i10 = phi i64 [ 0, %body6 ], [ %t26, %done15 ]
  %c11 = phi <16 x float> [ splat (float 0xFFF0000000000000), %body6 ], [ %t25, %done15 ]
  %t12 = icmp slt i64 %i10, 16
  br i1 %t12, label %body9, label %done9
body9:
  %t13 = add i64 %i10, 512
  %t14 = call i64 @llvm.smin.i64(i64 %t13, i64 16)
  br label %head15
head15:
  %i16 = phi i64 [ %i10, %body9 ], [ %t24, %body15 ]
  %c17 = phi <16 x float> [ splat (float 0xFFF0000000000000), %body9 ], [ %t23, %body15 ]
  %t18 = icmp slt i64 %i16, %t14
  br i1 %t18, label %body15, label %done15
body15:
  %t19 = mul i64 %i7, 24
  %t20 = add i64 %t19, %i16
  %t21 = getelementptr float, ptr %t2, i64 %t20
  %t22 = load <16 x float>, ptr %t21, align 4
  %t23 = call <16 x float> @llvm.maximum.v16f32(<16 x float> %c17, <16 x float> %t22)
  %t24 = add nuw nsw i64 %i16, 16
  br label %head15
done15:
  %t25 = call <16 x float> @llvm.maximum.v16f32(<16 x float> %c11, <16 x float> %c17)
  %t26 = add nuw nsw i64 %i10, 512
  br label %head9
done9:
  %t27 = icmp ult <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>, splat (i64 8)
  %t28 = mul i64 %i7, 24
  %t29 = add i64 %t28, 16
  %t30 = getelementptr float, ptr %t2, i64 %t29
  %t31 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %t30, <16 x i1> %t27, <16 x float> zeroinitializer)
  %t32 = select <16 x i1> %t27, <16 x float> %t31, <16 x float> splat (float 0xFFF0000000000000)
  %t33 = call <16 x float> @llvm.maximum.v16f32(<16 x float> splat (float 0xFFF0000000000000), <16 x float> %t32)
  %t34 = call <16 x float> @llvm.maximum.v16f32(<16 x float> %c11, <16 x float> %t33)
  %t35 = shufflevector <16 x float> %t34, <16 x float> poison, <16 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t36 = call <16 x float> @llvm.maximum.v16f32(<16 x float> %t34, <16 x float> %t35)
  %t37 = shufflevector <16 x float> %t36, <16 x float> poison, <16 x i32> <i32 4, i32 5, i32 6, i32 7, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t38 = call <16 x float> @llvm.maximum.v16f32(<16 x float> %t36, <16 x float> %t37)
  %t39 = shufflevector <16 x float> %t38, <16 x float> poison, <16 x i32> <i32 2, i32 3, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t40 = call <16 x float> @llvm.maximum.v16f32(<16 x float> %t38, <16 x float> %t39)
  %t41 = shufflevector <16 x float> %t40, <16 x float> poison, <16 x i32> <i32 1, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t42 = call <16 x float> @llvm.maximum.v16f32(<16 x float> %t40, <16 x float> %t41)
  %t43 = extractelement <16 x float> %t42, i64 0
  br label %head44
head44:
  %i45 = phi i64 [ 0, %done9 ], [ %t96, %done50 ]
  %c46 = phi <16 x double> [ splat (double 0x8000000000000000), %done9 ], [ %t95, %done50 ]
  %t47 = icmp slt i64 %i45, 16
  br i1 %t47, label %body44, label %done44
body44:
  %t48 = add i64 %i45, 512
  %t49 = call i64 @llvm.smin.i64(i64 %t48, i64 16)
  br label %head50
head50:
  %i51 = phi i64 [ %i45, %body44 ], [ %t93, %body50 ]
  %c52 = phi <16 x float> [ splat (float 0x8000000000000000), %body44 ], [ %t92, %body50 ]
  %t53 = icmp slt i64 %i51, %t49
  br i1 %t53, label %body50, label %done50
body50:
  %t54 = mul i64 %i7, 24
  %t55 = add i64 %t54, %i51
  %t56 = getelementptr float, ptr %t2, i64 %t55
  %t57 = load <16 x float>, ptr %t56, align 4
  %t58 = insertelement <16 x float> poison, float %t43, i64 0
  %t59 = shufflevector <16 x float> %t58, <16 x float> poison, <16 x i32> zeroinitializer
  %t60 = fsub <16 x float> %t57, %t59
  %t61 = getelementptr float, ptr %t5, i64 %i51
  %t62 = fcmp olt <16 x float> %t60, splat (float 0xC05A000000000000)
  %t63 = select <16 x i1> %t62, <16 x float> splat (float 0xC05A000000000000), <16 x float> %t60
  %t64 = fcmp ogt <16 x float> %t63, splat (float 0x4056400000000000)
  %t65 = select <16 x i1> %t64, <16 x float> splat (float 0x4056400000000000), <16 x float> %t63
  %t66 = fmul <16 x float> %t65, splat (float 0x3FF7154760000000)
  %t67 = call <16 x float> @llvm.rint.v16f32(<16 x float> %t66)
  %t68 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t67, <16 x float> splat (float 0xBFE62E4000000000), <16 x float> %t65)
  %t69 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t67, <16 x float> splat (float 0xBEB7F7D1C0000000), <16 x float> %t68)
  %t70 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3F2A01A020000000), <16 x float> %t69, <16 x float> splat (float 0x3F56C16C20000000))
  %t71 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t70, <16 x float> %t69, <16 x float> splat (float 0x3F81111120000000))
  %t72 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t71, <16 x float> %t69, <16 x float> splat (float 0x3FA5555560000000))
  %t73 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t72, <16 x float> %t69, <16 x float> splat (float 0x3FC5555560000000))
  %t74 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t73, <16 x float> %t69, <16 x float> splat (float 0x3FE0000000000000))
  %t75 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t74, <16 x float> %t69, <16 x float> splat (float 0x3FF0000000000000))
  %t76 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t75, <16 x float> %t69, <16 x float> splat (float 0x3FF0000000000000))
  %t77 = fcmp uno <16 x float> %t67, %t67
  %t78 = select <16 x i1> %t77, <16 x float> splat (float 0x0000000000000000), <16 x float> %t67
  %t79 = fptosi <16 x float> %t78 to <16 x i32>
  %t80 = ashr <16 x i32> %t79, splat (i32 1)
  %t81 = sub <16 x i32> %t79, %t80
  %t82 = add <16 x i32> %t80, splat (i32 127)
  %t83 = shl <16 x i32> %t82, splat (i32 23)
  %t84 = bitcast <16 x i32> %t83 to <16 x float>
  %t85 = fmul <16 x float> %t76, %t84
  %t86 = add <16 x i32> %t81, splat (i32 127)
  %t87 = shl <16 x i32> %t86, splat (i32 23)
  %t88 = bitcast <16 x i32> %t87 to <16 x float>
  %t89 = fmul <16 x float> %t85, %t88
  %t90 = fcmp uno <16 x float> %t60, %t60
  %t91 = select <16 x i1> %t90, <16 x float> %t60, <16 x float> %t89
  store <16 x float> %t91, ptr %t61, align 4
  %t92 = fadd <16 x float> %c52, %t91
  %t93 = add nuw nsw i64 %i51, 16
  br label %head50
done50:
  %t94 = fpext <16 x float> %c52 to <16 x double>
  %t95 = fadd <16 x double> %c46, %t94
  %t96 = add nuw nsw i64 %i45, 512
  br label %head44
done44:
  %t97 = icmp ult <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>, splat (i64 8)
  %t98 = mul i64 %i7, 24
  %t99 = add i64 %t98, 16
  %t100 = getelementptr float, ptr %t2, i64 %t99
  %t101 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %t100, <16 x i1> %t97, <16 x float> zeroinitializer)
  %t102 = insertelement <16 x float> poison, float %t43, i64 0
  %t103 = shufflevector <16 x float> %t102, <16 x float> poison, <16 x i32> zeroinitializer
  %t104 = fsub <16 x float> %t101, %t103
  %t105 = getelementptr float, ptr %t5, i64 16
  %t106 = fcmp olt <16 x float> %t104, splat (float 0xC05A000000000000)
  %t107 = select <16 x i1> %t106, <16 x float> splat (float 0xC05A000000000000), <16 x float> %t104
  %t108 = fcmp ogt <16 x float> %t107, splat (float 0x4056400000000000)
  %t109 = select <16 x i1> %t108, <16 x float> splat (float 0x4056400000000000), <16 x float> %t107
  %t110 = fmul <16 x float> %t109, splat (float 0x3FF7154760000000)
  %t111 = call <16 x float> @llvm.rint.v16f32(<16 x float> %t110)
  %t112 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t111, <16 x float> splat (float 0xBFE62E4000000000), <16 x float> %t109)
  %t113 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t111, <16 x float> splat (float 0xBEB7F7D1C0000000), <16 x float> %t112)
  %t114 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3F2A01A020000000), <16 x float> %t113, <16 x float> splat (float 0x3F56C16C20000000))
  %t115 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t114, <16 x float> %t113, <16 x float> splat (float 0x3F81111120000000))
  %t116 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t115, <16 x float> %t113, <16 x float> splat (float 0x3FA5555560000000))
  %t117 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t116, <16 x float> %t113, <16 x float> splat (float 0x3FC5555560000000))
  %t118 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t117, <16 x float> %t113, <16 x float> splat (float 0x3FE0000000000000))
  %t119 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t118, <16 x float> %t113, <16 x float> splat (float 0x3FF0000000000000))
  %t120 = call <16 x float> @llvm.fma.v16f32(<16 x float> %t119, <16 x float> %t113, <16 x float> splat (float 0x3FF0000000000000))
  %t121 = fcmp uno <16 x float> %t111, %t111
  %t122 = select <16 x i1> %t121, <16 x float> splat (float 0x0000000000000000), <16 x float> %t111
  %t123 = fptosi <16 x float> %t122 to <16 x i32>
  %t124 = ashr <16 x i32> %t123, splat (i32 1)
  %t125 = sub <16 x i32> %t123, %t124
  %t126 = add <16 x i32> %t124, splat (i32 127)
  %t127 = shl <16 x i32> %t126, splat (i32 23)
  %t128 = bitcast <16 x i32> %t127 to <16 x float>
  %t129 = fmul <16 x float> %t120, %t128
  %t130 = add <16 x i32> %t125, splat (i32 127)
  %t131 = shl <16 x i32> %t130, splat (i32 23)
  %t132 = bitcast <16 x i32> %t131 to <16 x float>
  %t133 = fmul <16 x float> %t129, %t132
  %t134 = fcmp uno <16 x float> %t104, %t104
  %t135 = select <16 x i1> %t134, <16 x float> %t104, <16 x float> %t133
  store <16 x float> %t135, ptr %t105, align 4
  %t136 = select <16 x i1> %t97, <16 x float> %t135, <16 x float> splat (float 0x8000000000000000)
  %t137 = fadd <16 x float> splat (float 0x8000000000000000), %t136
  %t138 = fpext <16 x float> %t137 to <16 x double>
  %t139 = fadd <16 x double> %c46, %t138
  %t140 = shufflevector <16 x double> %t139, <16 x double> poison, <16 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t141 = fadd <16 x double> %t139, %t140
  %t142 = shufflevector <16 x double> %t141, <16 x double> poison, <16 x i32> <i32 4, i32 5, i32 6, i32 7, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t143 = fadd <16 x double> %t141, %t142
  %t144 = shufflevector <16 x double> %t143, <16 x double> poison, <16 x i32> <i32 2, i32 3, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t145 = fadd <16 x double> %t143, %t144
  %t146 = shufflevector <16 x double> %t145, <16 x double> poison, <16 x i32> <i32 1, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %t147 = fadd <16 x double> %t145, %t146
  %t148 = extractelement <16 x double> %t147, i64 0
  %t149 = fptrunc double %t148 to float
  %t150 = sub i64 24, 0
  %t151 = urem i64 %t150, 16
  %t152 = sub i64 24, %t151
  br label %head153
head153:
  %i154 = phi i64 [ 0, %done44 ], [ %t164, %body153 ]
  %t155 = icmp slt i64 %i154, %t152
  br i1 %t155, label %body153, label %done153
body153:
  %t156 = getelementptr float, ptr %t5, i64 %i154
  %t157 = load <16 x float>, ptr %t156, align 4
  %t158 = insertelement <16 x float> poison, float %t149, i64 0
  %t159 = shufflevector <16 x float> %t158, <16 x float> poison, <16 x i32> zeroinitializer
  %t160 = fdiv <16 x float> %t157, %t159
  %t161 = mul i64 %i7, 24
  %t162 = add i64 %t161, %i154
  %t163 = getelementptr float, ptr %t4, i64 %t162
  store <16 x float> %t160, ptr %t163, align 4
  %t164 = add nuw nsw i64 %i154, 16
  br label %head153
done153:
  %t165 = icmp ne i64 %t151, 0
  br i1 %t165, label %then166, label %after166
then166:
  %t167 = insertelement <16 x i64> poison, i64 %t151, i64 0
  %t168 = shufflevector <16 x i64> %t167, <16 x i64> poison, <16 x i32> zeroinitializer
  %t169 = icmp ult <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>, %t168
  %t170 = getelementptr float, ptr %t5, i64 %t152
  %t171 = load <16 x float>, ptr %t170, align 4
  %t172 = insertelement <16 x float> poison, float %t149, i64 0
  %t173 = shufflevector <16 x float> %t172, <16 x float> poison, <16 x i32> zeroinitializer
  %t174 = fdiv <16 x float> %t171, %t173
  %t175 = mul i64 %i7, 24
  %t176 = add i64 %t175, %t152
  %t177 = getelementptr float, ptr %t4, i64 %t176
  call void @llvm.masked.store.v16f32.p0(<16 x float> %t174, ptr align 4 %t177, <16 x i1> %t169)
  br label %after166
after166:
  %t178 = add nuw nsw i64 %i7, 1
  br label %head6
done6:
  ret void
}
declare i64 @llvm.smin.i64(i64, i64)
declare <16 x float> @llvm.maximum.v16f32(<16 x float>, <16 x float>)
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)
declare <16 x float> @llvm.rint.v16f32(<16 x float>)
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, <16 x i1>)
