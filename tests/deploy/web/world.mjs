// node world.mjs PAGE < what: flies the module inside a page. {commands, ...} without its policy, {signals} with it alone.
import {readFileSync} from "node:fs";
import {load} from "../../../firmware/web/policy.mjs";
import {World} from "../../../firmware/web/quadrotor/world.mjs";

const text = readFileSync(process.argv[2], "utf8").match(/id="module">("[^<]*")</)[1];
const policy = await load(Buffer.from(JSON.parse(text), "base64"));
const world = new World(policy);
const told = JSON.parse(readFileSync(0, "utf8"));
const state = () => [world.position, world.quaternion, world.velocity, world.rate, world.rotors].flatMap((v) => [...v]);

/** States under commands, of an airframe whose parameters were changed, from a state. */
function fly({airframe, parameters, latency, start, commands}) {
    world.choose(airframe);
    world.begin();
    for (const [name, value] of Object.entries(parameters)) world.parameters[name].set(value);
    world.exports.derive();
    world.exports.latency(latency);
    new Float32Array(world.exports.memory.buffer, world.exports.body(), 17).set(start);
    return commands.map((command) => {
        policy.commands.motor_command.set(command);
        world.exports.fly();
        return state();
    });
}

/** What the policy is shown of a target that is put elsewhere, step by step. */
function shown({aim, steps}) {
    world.aim.set(aim);
    return Array.from({length: steps}, () => {
        world.step();
        return Object.fromEntries(Object.entries(policy.signals).map(([name, value]) => [name, [...value]]));
    });
}

const answers = {
    throws: (count) => world.throws(count),
    flights: (flights) => flights.map(fly),
    shown,
    signals: (steps) => steps.map((signals) => [...policy.step(signals).motor_command]),
};
const [what] = Object.keys(told);
console.log(JSON.stringify({contract: policy.contract, [what]: answers[what](told[what])}));
