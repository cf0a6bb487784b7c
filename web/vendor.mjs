// Copies what pages and the site carry from node_modules to their places: `npm install && npm run vendor`.
import { copyFileSync, readFileSync, writeFileSync } from "node:fs";

const to = new URL("../fulgurite/look/page/vendor/", import.meta.url);
for (const [name, folder, file] of [["d3", "d3", "d3.min.js"], ["dagre", "@dagrejs/dagre", "dagre.min.js"]]) {
  const from = new URL(`./node_modules/${folder}/`, import.meta.url);
  const text = readFileSync(new URL(`dist/${file}`, from), "utf8");
  writeFileSync(new URL(file, to), text.replace(/\/\/# sourceMappingURL=.*\n?/g, ""));
  copyFileSync(new URL("LICENSE", from), new URL(`${name}.LICENSE`, to));
}
const docs = new URL("../docs/vendor/", import.meta.url);
const shim = new URL("./node_modules/iframe-worker/", import.meta.url);
copyFileSync(new URL("shim/index.js", shim), new URL("iframe-worker.js", docs));
copyFileSync(new URL("LICENSE", shim), new URL("iframe-worker.LICENSE", docs));
