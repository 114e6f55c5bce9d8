// node car.mjs PAGE < what: drives the module inside a page. {drives} without its policy, {laps} with it, {signals} it alone.
import {readFileSync} from "node:fs";
import {load} from "../../../firmware/web/policy.mjs";
import {drawn, oval, randomTrack} from "../../../firmware/web/car/tracks.mjs";
import {World} from "../../../firmware/web/car/world.mjs";

const text = readFileSync(process.argv[2], "utf8").match(/id="module">("[^<]*")</)[1];
const policy = await load(Buffer.from(JSON.parse(text), "base64"));
const world = new World(policy);
const told = JSON.parse(readFileSync(0, "utf8"));

function placed(start) {
    world.racers[0].body.set(start);
    world.exports.begun(0);
}

/** States, lidar and places under commands, of a car whose parameters were changed, from a state on a track. */
function drive({car, parameters, latency, track, start, commands}) {
    world.choose(car);
    for (const [name, value] of Object.entries(parameters)) world.parameters[name][0] = value;
    world.exports.derive();
    world.exports.latency(latency);
    world.lay(...track);
    placed(start);
    return commands.map(([steering, speed]) => {
        policy.commands.steering[0] = steering;
        policy.commands.speed[0] = speed;
        world.exports.obey();
        world.exports.sense();
        const signals = Object.values(policy.signals).flatMap((value) => [...value]);
        return {state: [...world.racers[0].body], signals, place: [...world.racers[0].place]};
    });
}

const answers = {
    drives: (drives) => drives.map(drive),
    laps: (laps) => laps.map(({track, start}) => {
        world.choose(0);
        world.set({});
        world.lay(...track);
        placed(start);
        return world.lap();
    }),
    tracks: (seeds) => [oval(), ...seeds.map(randomTrack)],
    raced: (seeds) => world.laps(seeds.map(randomTrack)),
    drawn: (lines) => lines.map((line) => {
        try {
            return drawn(line);
        } catch (error) {
            return error.message;
        }
    }),
    signals: (steps) => steps.map((signals) => {
        const {steering, speed} = policy.step(signals);
        return [steering[0], speed[0]];
    }),
};
const [what] = Object.keys(told);
console.log(JSON.stringify(answers[what](told[what])));
