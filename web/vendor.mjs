// Copies what pages carry from node_modules to the package: `npm install && npm run vendor`.
import { copyFileSync, readFileSync, writeFileSync } from "node:fs";

const to = new URL("../fulgurite/look/page/vendor/", import.meta.url);
for (const [name, folder, file] of [["d3", "d3", "d3.min.js"], ["dagre", "@dagrejs/dagre", "dagre.min.js"]]) {
  const from = new URL(`./node_modules/${folder}/`, import.meta.url);
  const text = readFileSync(new URL(`dist/${file}`, from), "utf8");
  writeFileSync(new URL(file, to), text.replace(/\/\/# sourceMappingURL=.*\n?/g, ""));
  copyFileSync(new URL("LICENSE", from), new URL(`${name}.LICENSE`, to));
}
