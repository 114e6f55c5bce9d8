// node steps.mjs FOLDER < signals.json: commands of FOLDER/policy.wasm for a list of signals; an error's text for a bad one.
import {readFileSync} from "node:fs";
import {pathToFileURL} from "node:url";

const [folder] = process.argv.slice(2);
const {load} = await import(pathToFileURL(`${folder}/policy.mjs`));
const bytes = readFileSync(`${folder}/policy.wasm`);
const imports = WebAssembly.Module.imports(new WebAssembly.Module(bytes));
const policy = await load(bytes);
const number = (_, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value);
const commands = JSON.parse(readFileSync(0, "utf8"), (key, value) => (value === "NaN" ? NaN : value)).map((signals) => {
    try {
        return policy.step(signals);
    } catch (error) {
        return String(error);
    }
});
console.log(JSON.stringify({imports, used: policy.used, contract: policy.contract, commands}, number));
