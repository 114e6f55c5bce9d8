/* A policy file's WebAssembly module for browsers, workers and node: nothing else is loaded.
 *
 *     const policy = await load(bytes);                                  // replays the file's test vectors, or throws
 *     const {motor_command} = policy.step({position: [0, 0, 1], ...});   // SI units, by name
 *
 * A program with several robots loads the module once for each. */

const SECTION = "sim2metal";
const ARRAYS = {float: Float32Array, uint8_t: Uint8Array, int64_t: BigInt64Array};

export class Policy {
    /** `contract`: what the module says of itself; `exports`: its functions and memory. */
    constructor(contract, exports) {
        Object.assign(this, {contract, exports, name: contract.name, rate_hz: contract.rate_hz});
        this.signals = this.#views(contract.inputs, exports.signals());
        this.commands = this.#views(contract.outputs, exports.commands());
        this.used = exports.selftest(); // share of the tolerance
        if (!(this.used <= 1)) throw new Error(`self-test failed: ${this.used} of what is tolerated`);
        this.reset();
    }

    #views(members, start) {
        return Object.fromEntries(members.map((m) => {
            const size = m.shape.reduce((a, b) => a * b, 1);
            return [m.name, new ARRAYS[m.type](this.exports.memory.buffer, start + m.offset, size)];
        }));
    }

    /** Begin a flight. */
    reset() {
        this.exports.reset();
    }

    /** Commands by name for signals by name, one control step on; what is not finite throws and changes nothing. */
    step(signals) {
        for (const [name, place] of Object.entries(this.signals)) {
            const value = signals[name];
            if (value?.length !== place.length) throw new TypeError(`signal ${name}: needs ${place.length} numbers`);
            place.set(value);
        }
        if (!this.exports.step()) throw new RangeError("a signal or a result is not finite");
        return Object.fromEntries(Object.entries(this.commands).map(([name, place]) => [name, place.slice()]));
    }
}

/** The policy in the bytes of its module. */
export async function load(bytes) {
    const module = await WebAssembly.compile(bytes);
    const [told] = WebAssembly.Module.customSections(module, SECTION);
    if (!told) throw new Error("this WebAssembly module holds no policy");
    const instance = await WebAssembly.instantiate(module, {});
    return new Policy(JSON.parse(new TextDecoder().decode(told)), instance.exports);
}
