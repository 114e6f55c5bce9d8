// node browser.mjs CHROMIUM PAGE < {width, height, dark, phone, seconds, acts, shot}: what a browser without a screen shows.
// Prints frames per second, CPU time of all its processes per frame, what the page's own check says, and complaints.
import {spawn} from "node:child_process";
import {mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync} from "node:fs";
import {tmpdir} from "node:os";
import {join} from "node:path";

const [chromium, page] = process.argv.slice(2);
const told = {width: 1280, height: 800, dark: false, phone: false, seconds: 0, acts: [], shot: "", ...JSON.parse(readFileSync(0, "utf8"))};
const profile = mkdtempSync(join(tmpdir(), "browser-"));
const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe", `--user-data-dir=${profile}`];
const browser = spawn(chromium, [...flags, "about:blank"], {stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"]});
const [, , , write, read] = browser.stdio;
const waiting = new Map(), heard = [], complaints = [];
let number = 0, rest = "";

read.setEncoding("utf8");
read.on("data", (text) => {
    const parts = (rest + text).split("\0");
    rest = parts.pop();
    for (const message of parts.map((part) => JSON.parse(part))) {
        const {id, method, params} = message;
        if (id) waiting.get(id)(message);
        else if (method === "Runtime.exceptionThrown") complaints.push(params.exceptionDetails.exception?.description ?? "exception");
        else if (method === "Log.entryAdded") complaints.push(params.entry.text);
        else if (method === "Runtime.consoleAPICalled") complaints.push(JSON.stringify(params.args));
        else for (const [k, [wanted, resolve]] of heard.entries()) if (wanted === method) heard.splice(k, 1), resolve(params);
    }
});

let session;
function send(method, params = {}) {
    const id = ++number;
    write.write(`${JSON.stringify({id, method, params, ...(session && {sessionId: session})})}\0`);
    return new Promise((resolve, reject) => waiting.set(id, ({error, result}) => (error ? reject(new Error(`${method}: ${error.message}`)) : resolve(result))));
}
const hear = (method) => new Promise((resolve) => heard.push([method, resolve]));
const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
const ask = async (expression) => {
    const {result, exceptionDetails} = await send("Runtime.evaluate", {expression, awaitPromise: true, returnByValue: true});
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description);
    return result.value;
};

async function picture(path) {
    writeFileSync(path, Buffer.from((await send("Page.captureScreenshot", {format: "png"})).data, "base64"));
}

/** Seconds of CPU time of the browser and all that it started. */
function spent() {
    const parents = new Map(), times = new Map();
    for (const entry of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
        try {
            const fields = readFileSync(`/proc/${entry}/stat`, "utf8").split(") ").pop().split(" ");
            parents.set(Number(entry), Number(fields[1]));
            times.set(Number(entry), (Number(fields[11]) + Number(fields[12])) / 100);
        } catch { /* it has ended */ }
    }
    const ours = (pid) => pid === browser.pid || (parents.has(pid) && ours(parents.get(pid)));
    return [...times].reduce((sum, [pid, time]) => sum + (ours(pid) ? time : 0), 0);
}

const report = {};
try {
    const {targetId} = await send("Target.createTarget", {url: "about:blank"});
    session = (await send("Target.attachToTarget", {targetId, flatten: true})).sessionId;
    for (const part of ["Page", "Runtime", "Log", "Performance"]) await send(`${part}.enable`);
    const {width, height, phone, dark} = told;
    await send("Emulation.setDeviceMetricsOverride", {width, height, deviceScaleFactor: phone ? 2 : 1, mobile: phone});
    if (phone) await send("Emulation.setTouchEmulationEnabled", {enabled: true});
    await send("Emulation.setEmulatedMedia", {features: [{name: "prefers-color-scheme", value: dark ? "dark" : "light"}]});
    const loaded = hear("Page.loadEventFired");
    await send("Page.navigate", {url: page});
    await loaded;
    await wait(told.settle ?? 1);
    report.acts = [];
    for (const act of told.acts) {
        if (typeof act === "number") await wait(act);
        else if (act.shot) await picture(act.shot);
        else if (act.key) {
            await send("Input.dispatchKeyEvent", {type: act.type ?? "keyDown", key: act.key, code: act.code ?? act.key});
        } else if (act.touch) {
            await send("Input.dispatchTouchEvent", {type: act.type, touchPoints: act.touch});
        } else if (act.mouse) {
            const [x, y] = act.mouse;
            await send("Input.dispatchMouseEvent", {type: act.type, x, y, button: "left", buttons: 1, clickCount: 1});
        } else report.acts.push(await ask(act.ask));
    }
    if (told.seconds) {
        await ask(`globalThis.seen = []; (function tick(t) { seen.push(t); requestAnimationFrame(tick); })(performance.now()); 0`);
        const metrics = async () => Object.fromEntries((await send("Performance.getMetrics")).metrics.map((m) => [m.name, m.value]));
        const [before, began, first] = [await metrics(), performance.now(), spent()];
        await wait(told.seconds);
        const [after, ended, last] = [await metrics(), performance.now(), spent()];
        const gaps = JSON.parse(await ask("JSON.stringify(seen)"));
        const frames = Math.max(1, gaps.length - 1), late = gaps.slice(1).map((t, k) => t - gaps[k]).sort((a, b) => a - b);
        report.fps = (1000 * frames) / (ended - began);
        report.gap99 = late[Math.floor(0.99 * late.length)];
        report.cpu = (1000 * (last - first)) / frames; // ms, all processes
        for (const name of ["Task", "Script", "Layout", "RecalcStyle"]) {
            report[name.toLowerCase()] = (1000 * (after[`${name}Duration`] - before[`${name}Duration`])) / frames;
        }
        report.load = Number(readFileSync("/proc/loadavg", "utf8").split(" ")[0]);
    }
    report.test = await ask(`document.getElementById("test")?.textContent`);
    report.report = await ask(`document.getElementById("report")?.value`);
    if (told.shot) await picture(told.shot);
    report.complaints = complaints;
    console.log(JSON.stringify(report));
    session = undefined;
    await send("Browser.close");
} finally {
    browser.kill("SIGKILL");
    for (let round = 0; round < 20; ++round) { // its children still write for a moment
        try {
            rmSync(profile, {recursive: true, force: true});
            break;
        } catch {
            await wait(0.1);
        }
    }
}
process.exit(0);
