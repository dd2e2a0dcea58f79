// Checks model.onnx in JavaScript on checks.jsonl of write_checks.py: node check.mjs onnxruntime-node, or onnxruntime-web.

import { createReadStream, readFileSync } from "node:fs";
import { createInterface } from "node:readline";

if (process.argv.length < 3) throw new Error("usage: node check.mjs onnxruntime-node");
const ort = await import(process.argv[2]);
if (ort.env.wasm) ort.env.wasm.numThreads = 1; // else onnxruntime-web waits for workers in Node.js
const session = await ort.InferenceSession.create(readFileSync("model.onnx"));
const place = (values) => values.indexOf(Math.max(...values));
let [count, agreeing, largest] = [0, 0, 0];
for await (const line of createInterface({ input: createReadStream("checks.jsonl") })) {
  const check = JSON.parse(line);
  const pixels = Uint8Array.from(Buffer.from(check.pixels, "base64"));
  const images = new ort.Tensor("uint8", pixels, check.shape);
  const { probabilities } = await session.run({ images });
  const found = [...probabilities.data];
  largest = Math.max(largest, ...found.map((value, at) => Math.abs(value - check.probabilities[at])));
  agreeing += place(found) === place(check.probabilities);
  count += 1;
}
console.log(`${agreeing} of ${count} agree, probabilities to ${largest.toPrecision(2)}`);
process.exit(count > 0 && largest <= 1e-3 ? 0 : 1); // NaN is in no order
