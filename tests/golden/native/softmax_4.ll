define void @kernel(ptr noalias %params, ptr noalias %values, i64 %first, i64 %last) {
entry:
  %t1 = getelementptr ptr, ptr %params, i64 0
  %t2 = load ptr, ptr %t1
  %t3 = getelementptr ptr, ptr %params, i64 1
  %t4 = load ptr, ptr %t3
  br label %head5
head5:
  %i6 = phi i64 [ %first, %entry ], [ %t187, %after140 ]
  %t7 = icmp slt i64 %i6, %last
  br i1 %t7, label %body5, label %done5
body5:
  br label %head8
head8:
  %i9 = phi i64 [ 0, %body5 ], [ %t25, %done14 ]
  %c10 = phi <4 x float> [ splat (float 0xFFF0000000000000), %body5 ], [ %t24, %done14 ]
  %t11 = icmp slt i64 %i9, 24
  br i1 %t11, label %body8, label %done8
body8:
  %t12 = add i64 %i9, 128
  %t13 = call i64 @llvm.smin.i64(i64 %t12, i64 24)
  br label %head14
head14:
  %i15 = phi i64 [ %i9, %body8 ], [ %t23, %body14 ]
  %c16 = phi <4 x float> [ splat (float 0xFFF0000000000000), %body8 ], [ %t22, %body14 ]
  %t17 = icmp slt i64 %i15, %t13
  br i1 %t17, label %body14, label %done14
body14:
  %t18 = mul i64 %i6, 24
  %t19 = add i64 %t18, %i15
  %t20 = getelementptr float, ptr %t2, i64 %t19
  %t21 = load <4 x float>, ptr %t20, align 4
  %t22 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %c16, <4 x float> %t21)
  %t23 = add nuw nsw i64 %i15, 4
  br label %head14
done14:
  %t24 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %c10, <4 x float> %c16)
  %t25 = add nuw nsw i64 %i9, 128
  br label %head8
done8:
  %t26 = shufflevector <4 x float> %c10, <4 x float> poison, <4 x i32> <i32 2, i32 3, i32 0, i32 0>
  %t27 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %c10, <4 x float> %t26)
  %t28 = shufflevector <4 x float> %t27, <4 x float> poison, <4 x i32> <i32 1, i32 0, i32 0, i32 0>
  %t29 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %t27, <4 x float> %t28)
  %t30 = extractelement <4 x float> %t29, i64 0
  br label %head31
head31:
  %i32 = phi i64 [ 0, %done8 ], [ %t82, %done37 ]
  %c33 = phi <4 x double> [ splat (double 0x8000000000000000), %done8 ], [ %t81, %done37 ]
  %t34 = icmp slt i64 %i32, 24
  br i1 %t34, label %body31, label %done31
body31:
  %t35 = add i64 %i32, 128
  %t36 = call i64 @llvm.smin.i64(i64 %t35, i64 24)
  br label %head37
head37:
  %i38 = phi i64 [ %i32, %body31 ], [ %t79, %body37 ]
  %c39 = phi <4 x float> [ splat (float 0x8000000000000000), %body31 ], [ %t78, %body37 ]
  %t40 = icmp slt i64 %i38, %t36
  br i1 %t40, label %body37, label %done37
body37:
  %t41 = mul i64 %i6, 24
  %t42 = add i64 %t41, %i38
  %t43 = getelementptr float, ptr %t2, i64 %t42
  %t44 = load <4 x float>, ptr %t43, align 4
  %t45 = insertelement <4 x float> poison, float %t30, i64 0
  %t46 = shufflevector <4 x float> %t45, <4 x float> poison, <4 x i32> zeroinitializer
  %t47 = fsub <4 x float> %t44, %t46
  %t48 = fcmp olt <4 x float> %t47, splat (float 0xC05A000000000000)
  %t49 = select <4 x i1> %t48, <4 x float> splat (float 0xC05A000000000000), <4 x float> %t47
  %t50 = fcmp ogt <4 x float> %t49, splat (float 0x4056400000000000)
  %t51 = select <4 x i1> %t50, <4 x float> splat (float 0x4056400000000000), <4 x float> %t49
  %t52 = fmul <4 x float> %t51, splat (float 0x3FF7154760000000)
  %t53 = call <4 x float> @llvm.rint.v4f32(<4 x float> %t52)
  %t54 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t53, <4 x float> splat (float 0xBFE62E4000000000), <4 x float> %t51)
  %t55 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t53, <4 x float> splat (float 0xBEB7F7D1C0000000), <4 x float> %t54)
  %t56 = call <4 x float> @llvm.fma.v4f32(<4 x float> splat (float 0x3F2A01A020000000), <4 x float> %t55, <4 x float> splat (float 0x3F56C16C20000000))
  %t57 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t56, <4 x float> %t55, <4 x float> splat (float 0x3F81111120000000))
  %t58 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t57, <4 x float> %t55, <4 x float> splat (float 0x3FA5555560000000))
  %t59 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t58, <4 x float> %t55, <4 x float> splat (float 0x3FC5555560000000))
  %t60 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t59, <4 x float> %t55, <4 x float> splat (float 0x3FE0000000000000))
  %t61 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t60, <4 x float> %t55, <4 x float> splat (float 0x3FF0000000000000))
  %t62 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t61, <4 x float> %t55, <4 x float> splat (float 0x3FF0000000000000))
  %t63 = fcmp uno <4 x float> %t53, %t53
  %t64 = select <4 x i1> %t63, <4 x float> splat (float 0x0000000000000000), <4 x float> %t53
  %t65 = fptosi <4 x float> %t64 to <4 x i32>
  %t66 = ashr <4 x i32> %t65, splat (i32 1)
  %t67 = sub <4 x i32> %t65, %t66
  %t68 = add <4 x i32> %t66, splat (i32 127)
  %t69 = shl <4 x i32> %t68, splat (i32 23)
  %t70 = bitcast <4 x i32> %t69 to <4 x float>
  %t71 = fmul <4 x float> %t62, %t70
  %t72 = add <4 x i32> %t67, splat (i32 127)
  %t73 = shl <4 x i32> %t72, splat (i32 23)
  %t74 = bitcast <4 x i32> %t73 to <4 x float>
  %t75 = fmul <4 x float> %t71, %t74
  %t76 = fcmp uno <4 x float> %t47, %t47
  %t77 = select <4 x i1> %t76, <4 x float> %t47, <4 x float> %t75
  %t78 = fadd <4 x float> %c39, %t77
  %t79 = add nuw nsw i64 %i38, 4
  br label %head37
done37:
  %t80 = fpext <4 x float> %c39 to <4 x double>
  %t81 = fadd <4 x double> %c33, %t80
  %t82 = add nuw nsw i64 %i32, 128
  br label %head31
done31:
  %t83 = shufflevector <4 x double> %c33, <4 x double> poison, <4 x i32> <i32 2, i32 3, i32 0, i32 0>
  %t84 = fadd <4 x double> %c33, %t83
  %t85 = shufflevector <4 x double> %t84, <4 x double> poison, <4 x i32> <i32 1, i32 0, i32 0, i32 0>
  %t86 = fadd <4 x double> %t84, %t85
  %t87 = extractelement <4 x double> %t86, i64 0
  %t88 = fptrunc double %t87 to float
  %t89 = sub i64 24, 0
  %t90 = urem i64 %t89, 4
  %t91 = sub i64 24, %t90
  br label %head92
head92:
  %i93 = phi i64 [ 0, %done31 ], [ %t138, %body92 ]
  %t94 = icmp slt i64 %i93, %t91
  br i1 %t94, label %body92, label %done92
body92:
  %t95 = mul i64 %i6, 24
  %t96 = add i64 %t95, %i93
  %t97 = getelementptr float, ptr %t2, i64 %t96
  %t98 = load <4 x float>, ptr %t97, align 4
  %t99 = insertelement <4 x float> poison, float %t30, i64 0
  %t100 = shufflevector <4 x float> %t99, <4 x float> poison, <4 x i32> zeroinitializer
  %t101 = fsub <4 x float> %t98, %t100
  %t102 = fcmp olt <4 x float> %t101, splat (float 0xC05A000000000000)
  %t103 = select <4 x i1> %t102, <4 x float> splat (float 0xC05A000000000000), <4 x float> %t101
  %t104 = fcmp ogt <4 x float> %t103, splat (float 0x4056400000000000)
  %t105 = select <4 x i1> %t104, <4 x float> splat (float 0x4056400000000000), <4 x float> %t103
  %t106 = fmul <4 x float> %t105, splat (float 0x3FF7154760000000)
  %t107 = call <4 x float> @llvm.rint.v4f32(<4 x float> %t106)
  %t108 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t107, <4 x float> splat (float 0xBFE62E4000000000), <4 x float> %t105)
  %t109 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t107, <4 x float> splat (float 0xBEB7F7D1C0000000), <4 x float> %t108)
  %t110 = call <4 x float> @llvm.fma.v4f32(<4 x float> splat (float 0x3F2A01A020000000), <4 x float> %t109, <4 x float> splat (float 0x3F56C16C20000000))
  %t111 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t110, <4 x float> %t109, <4 x float> splat (float 0x3F81111120000000))
  %t112 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t111, <4 x float> %t109, <4 x float> splat (float 0x3FA5555560000000))
  %t113 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t112, <4 x float> %t109, <4 x float> splat (float 0x3FC5555560000000))
  %t114 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t113, <4 x float> %t109, <4 x float> splat (float 0x3FE0000000000000))
  %t115 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t114, <4 x float> %t109, <4 x float> splat (float 0x3FF0000000000000))
  %t116 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t115, <4 x float> %t109, <4 x float> splat (float 0x3FF0000000000000))
  %t117 = fcmp uno <4 x float> %t107, %t107
  %t118 = select <4 x i1> %t117, <4 x float> splat (float 0x0000000000000000), <4 x float> %t107
  %t119 = fptosi <4 x float> %t118 to <4 x i32>
  %t120 = ashr <4 x i32> %t119, splat (i32 1)
  %t121 = sub <4 x i32> %t119, %t120
  %t122 = add <4 x i32> %t120, splat (i32 127)
  %t123 = shl <4 x i32> %t122, splat (i32 23)
  %t124 = bitcast <4 x i32> %t123 to <4 x float>
  %t125 = fmul <4 x float> %t116, %t124
  %t126 = add <4 x i32> %t121, splat (i32 127)
  %t127 = shl <4 x i32> %t126, splat (i32 23)
  %t128 = bitcast <4 x i32> %t127 to <4 x float>
  %t129 = fmul <4 x float> %t125, %t128
  %t130 = fcmp uno <4 x float> %t101, %t101
  %t131 = select <4 x i1> %t130, <4 x float> %t101, <4 x float> %t129
  %t132 = insertelement <4 x float> poison, float %t88, i64 0
  %t133 = shufflevector <4 x float> %t132, <4 x float> poison, <4 x i32> zeroinitializer
  %t134 = fdiv <4 x float> %t131, %t133
  %t135 = mul i64 %i6, 24
  %t136 = add i64 %t135, %i93
  %t137 = getelementptr float, ptr %t4, i64 %t136
  store <4 x float> %t134, ptr %t137, align 4
  %t138 = add nuw nsw i64 %i93, 4
  br label %head92
done92:
  %t139 = icmp ne i64 %t90, 0
  br i1 %t139, label %then140, label %after140
then140:
  %t141 = insertelement <4 x i64> poison, i64 %t90, i64 0
  %t142 = shufflevector <4 x i64> %t141, <4 x i64> poison, <4 x i32> zeroinitializer
  %t143 = icmp ult <4 x i64> <i64 0, i64 1, i64 2, i64 3>, %t142
  %t144 = mul i64 %i6, 24
  %t145 = add i64 %t144, %t91
  %t146 = getelementptr float, ptr %t2, i64 %t145
  %t147 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr align 4 %t146, <4 x i1> %t143, <4 x float> zeroinitializer)
  %t148 = insertelement <4 x float> poison, float %t30, i64 0
  %t149 = shufflevector <4 x float> %t148, <4 x float> poison, <4 x i32> zeroinitializer
  %t150 = fsub <4 x float> %t147, %t149
  %t151 = fcmp olt <4 x float> %t150, splat (float 0xC05A000000000000)
  %t152 = select <4 x i1> %t151, <4 x float> splat (float 0xC05A000000000000), <4 x float> %t150
  %t153 = fcmp ogt <4 x float> %t152, splat (float 0x4056400000000000)
  %t154 = select <4 x i1> %t153, <4 x float> splat (float 0x4056400000000000), <4 x float> %t152
  %t155 = fmul <4 x float> %t154, splat (float 0x3FF7154760000000)
  %t156 = call <4 x float> @llvm.rint.v4f32(<4 x float> %t155)
  %t157 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t156, <4 x float> splat (float 0xBFE62E4000000000), <4 x float> %t154)
  %t158 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t156, <4 x float> splat (float 0xBEB7F7D1C0000000), <4 x float> %t157)
  %t159 = call <4 x float> @llvm.fma.v4f32(<4 x float> splat (float 0x3F2A01A020000000), <4 x float> %t158, <4 x float> splat (float 0x3F56C16C20000000))
  %t160 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t159, <4 x float> %t158, <4 x float> splat (float 0x3F81111120000000))
  %t161 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t160, <4 x float> %t158, <4 x float> splat (float 0x3FA5555560000000))
  %t162 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t161, <4 x float> %t158, <4 x float> splat (float 0x3FC5555560000000))
  %t163 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t162, <4 x float> %t158, <4 x float> splat (float 0x3FE0000000000000))
  %t164 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t163, <4 x float> %t158, <4 x float> splat (float 0x3FF0000000000000))
  %t165 = call <4 x float> @llvm.fma.v4f32(<4 x float> %t164, <4 x float> %t158, <4 x float> splat (float 0x3FF0000000000000))
  %t166 = fcmp uno <4 x float> %t156, %t156
  %t167 = select <4 x i1> %t166, <4 x float> splat (float 0x0000000000000000), <4 x float> %t156
  %t168 = fptosi <4 x float> %t167 to <4 x i32>
  %t169 = ashr <4 x i32> %t168, splat (i32 1)
  %t170 = sub <4 x i32> %t168, %t169
  %t171 = add <4 x i32> %t169, splat (i32 127)
  %t172 = shl <4 x i32> %t171, splat (i32 23)
  %t173 = bitcast <4 x i32> %t172 to <4 x float>
  %t174 = fmul <4 x float> %t165, %t173
  %t175 = add <4 x i32> %t170, splat (i32 127)
  %t176 = shl <4 x i32> %t175, splat (i32 23)
  %t177 = bitcast <4 x i32> %t176 to <4 x float>
  %t178 = fmul <4 x float> %t174, %t177
  %t179 = fcmp uno <4 x float> %t150, %t150
  %t180 = select <4 x i1> %t179, <4 x float> %t150, <4 x float> %t178
  %t181 = insertelement <4 x float> poison, float %t88, i64 0
  %t182 = shufflevector <4 x float> %t181, <4 x float> poison, <4 x i32> zeroinitializer
  %t183 = fdiv <4 x float> %t180, %t182
  %t184 = mul i64 %i6, 24
  %t185 = add i64 %t184, %t91
  %t186 = getelementptr float, ptr %t4, i64 %t185
  call void @llvm.masked.store.v4f32.p0(<4 x float> %t183, ptr align 4 %t186, <4 x i1> %t143)
  br label %after140
after140:
  %t187 = add nuw nsw i64 %i6, 1
  br label %head5
done5:
  ret void
}
declare i64 @llvm.smin.i64(i64, i64)
declare <4 x float> @llvm.maximum.v4f32(<4 x float>, <4 x float>)
declare <4 x float> @llvm.rint.v4f32(<4 x float>)
declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)
declare <4 x float> @llvm.masked.load.v4f32.p0(ptr, <4 x i1>, <4 x float>)
declare void @llvm.masked.store.v4f32.p0(<4 x float>, ptr, <4 x i1>)
