// node soccer.mjs PAGE < what: plays the module inside a page. {steps} without its policy, {games} with it, {signals} it alone.
import {readFileSync} from "node:fs";
import {load} from "../../../firmware/web/policy.mjs";
import {World} from "../../../firmware/web/soccer/world.mjs";

const text = readFileSync(process.argv[2], "utf8").match(/id="module">("[^<]*")</)[1];
const policy = await load(Buffer.from(JSON.parse(text), "base64"));
const world = new World(policy);
const told = JSON.parse(readFileSync(0, "utf8"));

function placed(start) {
    world.match.set(start);
    world.exports.begun();
}

/** The state a control step after each of these, under commands, of a match whose parameters were changed; what was seen. */
function steps({ball, robots, states, commands}) {
    world.set({});
    for (const [name, value] of Object.entries(ball)) world.sphere[name][0] = value;
    for (const [k, changed] of robots.entries()) {
        for (const [name, value] of Object.entries(changed)) world.parameters[k][name][0] = value;
    }
    return states.map((state, k) => {
        placed(state);
        world.exports.sense();
        const signals = Object.values(policy.signals).flatMap((value) => [...value]);
        world.told.set(commands[k].flat());
        world.exports.play();
        return {state: [...world.match], signals};
    });
}

/** The state a control step after each of these, under the policy and a scripted player. */
function traces({states, who, pace}) {
    world.set({});
    return states.map((match) => match.map((state) => {
        placed(state);
        world.step(who, pace);
        return [...world.match];
    }));
}

const answers = {
    steps: (matches) => matches.map(steps),
    traces,
    games: ({starts, who, pace, seconds}) => starts.map((start) => {
        world.set({});
        placed(start);
        return world.game(who, pace, seconds);
    }),
    kickoffs: (seeds) => seeds.map((seed) => {
        world.begin(seed);
        return [...world.match];
    }),
    played: (count) => world.games(count),
    signals: (steps) => steps.map((signals) => Object.values(policy.step(signals)).flatMap((value) => [...value])),
};
const [what] = Object.keys(told);
console.log(JSON.stringify(answers[what](told[what])));
