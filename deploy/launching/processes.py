"""Stand-in of `launch.actions.ExecuteProcess`: starts a process, forwards what it prints, ends it when the launch ends.

A process leads a session of its own, and a signal goes to all its descendants that did not leave it: what Ctrl-C does
in a terminal. First SIGINT; after `sigterm_timeout` seconds SIGTERM; after `sigkill_timeout` more SIGKILL.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pty
import re
import shlex
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from deploy.launching import events
from deploy.launching.actions import Action, LaunchDescriptionEntity, LaunchError
from deploy.launching.substitutions import LaunchConfiguration, perform_substitutions, typed

_SIGTERM_TIMEOUT = LaunchConfiguration("sigterm_timeout", default=5)
_SIGKILL_TIMEOUT = LaunchConfiguration("sigkill_timeout", default=5)
LAST_WORDS = 1.0  # s: how long a dead process's output may stay open because a descendant holds it
_OUTPUTS = {  # destinations of (stdout, stderr)
    "screen": ({"screen"}, {"screen"}),
    "log": ({"log"}, {"log", "screen"}),
    "both": ({"log", "screen"}, {"log", "screen"}),
    "own_log": ({"own_log"}, {"own_log"}),
    "full": ({"screen", "log", "own_log"}, {"screen", "log", "own_log"}),
}


def _destinations(output: Any) -> tuple[set[str], set[str]]:
    if isinstance(output, str):
        if output not in _OUTPUTS:
            raise LaunchError(f"output={output!r} is not one of: {', '.join(_OUTPUTS)}")
        return _OUTPUTS[output]
    named = {source: {where} if isinstance(where, str) else set(where) for source, where in output.items()}
    wrong = named.keys() - {"stdout", "stderr", "both"} or set().union(*named.values()) - {"screen", "log", "own_log"}
    if wrong:
        raise LaunchError(f"output={output!r}: {', '.join(wrong)} is neither a source nor a destination of output")
    return tuple(named.get("both", set()) | named.get(source, set()) for source in ("stdout", "stderr"))  # type: ignore


@dataclass(eq=False, kw_only=True)
class ExecuteProcess(Action):
    """A process to start. After that, `final_name`, `pid`, `return_code`, `cmd` and so on tell what became of it."""

    cmd: Iterable[Any]
    name: Any = None
    prefix: Any = None
    cwd: Any = None
    env: Mapping[Any, Any] | None = None
    additional_env: Mapping[Any, Any] | None = None
    shell: bool = False
    sigterm_timeout: Any = _SIGTERM_TIMEOUT
    sigkill_timeout: Any = _SIGKILL_TIMEOUT
    emulate_tty: Any = False
    output: Any = "log"
    output_format: str = "[{this.process_description.final_name}] {line}"
    cached_output: bool = False
    log_cmd: bool = False
    on_exit: Any = None
    respawn: Any = False
    respawn_delay: float | None = None
    respawn_max_retries: int = -1
    completes_at_once: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.final_name: str | None = None
        self.final_cmd: list[str] = []
        self.final_cwd: str | None = None
        self.final_env: dict[str, str] = {}
        self.pid: int | None = None
        self.return_code: int | None = None
        self._ended = asyncio.Event()  # the process that runs now has ended
        self._ending = False  # it has been asked to
        self._printed: dict[str, list[str]] = {"stdout": [], "stderr": []}

    def contains(self) -> Iterable[LaunchDescriptionEntity]:
        return [] if self.on_exit is None else events.OnProcessExit(on_exit=self.on_exit).described()

    @property
    def process_description(self) -> ExecuteProcess:
        """Itself: ROS 2 keeps name and command in an object of their own."""
        return self

    @property
    def process_name(self) -> str | None:
        """The unique name: that of the executable and a number."""
        return self.final_name

    @property
    def process_details(self) -> dict[str, Any] | None:
        """name, cmd, cwd, env and pid once it has started."""
        return None if self.pid is None else self._details()

    def get_stdout(self) -> str:
        """What it printed; RuntimeError without cached_output=True."""
        return self._cached("stdout")

    def get_stderr(self) -> str:
        """What it printed as errors; RuntimeError without cached_output=True."""
        return self._cached("stderr")

    def _cached(self, source: str) -> str:
        if not self.cached_output:
            raise RuntimeError(f"process {self.final_name}: its output is kept only with cached_output=True")
        return "".join(f"{line}\n" for line in self._printed[source])

    def _details(self) -> dict[str, Any]:
        return {
            "action": self,
            "process_name": self.final_name,
            "cmd": self.final_cmd,
            "cwd": self.final_cwd,
            "env": self.final_env,
            "pid": self.pid,
        }

    def command(self, context: Any) -> list[str]:
        """The words of the command."""
        return [perform_substitutions(context, word) for word in self.cmd]

    def label(self, context: Any, command: list[str]) -> str:
        """What to call the process."""
        return os.path.basename(command[0]) if self.name is None else perform_substitutions(context, self.name)

    def _prepare(self, context: Any) -> None:
        def text(value: Any) -> str:
            return perform_substitutions(context, value)

        def texts(pairs: Mapping[Any, Any]) -> dict[str, str]:
            return {text(name): text(value) for name, value in pairs.items()}

        command = self.command(context)
        prefix, matches = self.prefix, True
        if prefix is None:
            prefix = context.launch_configurations.get("launch-prefix", "")
            pattern = context.launch_configurations.get("launch-prefix-filter", "")
            matches = re.match(pattern, os.path.basename(command[0])) is not None
        self.final_name = f"{self.label(context, command)}-{next(context.numbers)}"
        self.final_cmd = [*(shlex.split(text(prefix)) if matches else []), *command]
        self.final_cwd = None if self.cwd is None else text(self.cwd)
        self.final_env = dict(context.environment) if self.env is None else texts(self.env)
        self.final_env |= texts(self.additional_env or {})

    def execute(self, context: Any) -> None:
        if self.final_name is not None:
            raise LaunchError(f"process {self.final_name} is executed more than once")
        self._prepare(context)
        if context.is_shutdown:
            return
        output = os.environ.get("OVERRIDE_LAUNCH_PROCESS_OUTPUT", self.output)
        destinations = _destinations(output if isinstance(output, Mapping) else perform_substitutions(context, output))
        timeouts = [typed(context, value, float) for value in (self.sigterm_timeout, self.sigkill_timeout)]
        self._timeouts = dict(zip((signal.SIGTERM, signal.SIGKILL), timeouts, strict=True))
        tty = context.launch_configurations.get("emulate_tty", self.emulate_tty)
        if self.on_exit is not None:
            context.register_event_handler(events.OnProcessExit(target_action=self, on_exit=self.on_exit))
        context.running.append(self)
        context.start(self._run(context, destinations, typed(context, tty, bool), typed(context, self.respawn, bool)))

    async def _run(self, context: Any, destinations: tuple[set[str], set[str]], tty: bool, respawn: bool) -> None:
        """Start it, and again as often as `respawn` wants."""
        try:
            for tries in itertools.count():
                await self._once(context, destinations, tty)
                if self._ending or context.is_shutdown or not respawn or tries == self.respawn_max_retries:
                    return
                if self.respawn_delay:
                    await context.pause(self.respawn_delay)
                if context.is_shutdown:
                    return
        finally:
            context.running.remove(self)
            context.completed(self)

    async def _once(self, context: Any, destinations: tuple[set[str], set[str]], tty: bool) -> None:
        """Start it and wait until it has ended."""
        name = self.final_name
        if self.log_cmd:
            context.logger.log(
                "INFO", name, f"process details: cmd='{shlex.join(self.final_cmd)}', cwd={self.final_cwd}"
            )
        channels = [pty.openpty() if tty else os.pipe() for _ in destinations]
        try:
            process = await self._spawn([end for _, end in channels])
        except OSError as error:
            for start, _ in channels:
                os.close(start)
            raise LaunchError(f"cannot start {name}: {self.final_cmd[0]!r}: {error.strerror}") from None
        finally:
            for _, end in channels:
                os.close(end)
        self.pid, self.return_code = process.pid, None
        self._ended.clear()
        context.logger.log("INFO", name, f"process started with pid [{process.pid}]")
        context.emit_event_sync(events.ProcessStarted(**self._details()))
        readers = [
            asyncio.ensure_future(self._forward(context, start, source, where))
            for (start, _), source, where in zip(channels, self._printed, destinations, strict=True)
        ]
        if context.is_shutdown or self._ending:  # asked while the process was being born
            self._ending = False
            self.shut_down(context)
        status = self.return_code = await process.wait()
        self._ended.set()
        await asyncio.wait(readers, timeout=LAST_WORDS)
        for reader in readers:
            reader.cancel()
        self._report(context, status)

    async def _spawn(self, outputs: list[int]) -> asyncio.subprocess.Process:
        where = {"cwd": self.final_cwd, "env": self.final_env, "start_new_session": True}
        streams = {"stdin": subprocess.PIPE, "stdout": outputs[0], "stderr": outputs[1]}
        if self.shell:
            return await asyncio.create_subprocess_shell(" ".join(self.final_cmd), **streams, **where)  # type: ignore
        return await asyncio.create_subprocess_exec(*self.final_cmd, **streams, **where)  # type: ignore

    def _report(self, context: Any, status: int) -> None:
        if status == 0:
            context.logger.log("INFO", self.final_name, f"process has finished cleanly [pid {self.pid}]")
        else:
            said = f"[pid {self.pid}, exit code {status}, cmd '{' '.join(self.final_cmd)}']"
            context.logger.log("ERROR", self.final_name, f"process has died {said}.")
        context.emit_event_sync(events.ProcessExited(returncode=status, **self._details()))

    async def _forward(self, context: Any, descriptor: int, source: str, destinations: set[str]) -> None:
        """Pass on what the process writes, line by line."""
        reader = asyncio.StreamReader()
        file = os.fdopen(descriptor, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), file
        )
        rest = b""
        try:
            while chunk := await reader.read(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                self._write(context, source, destinations, lines)
                event = events.ProcessIO(text=chunk, from_stdout=source == "stdout", **self._details())
                if context.would_handle_event(event):
                    context.emit_event_sync(event)
        except OSError:  # a terminal's other side is closed
            pass
        finally:
            self._write(context, source, destinations, [rest] if rest else [])
            transport.close()

    def _write(self, context: Any, source: str, destinations: set[str], lines: list[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace").removesuffix("\r")
            if self.cached_output:
                self._printed[source].append(text)
            context.logger.output(
                self.final_name, source, self.output_format.format(line=text, this=self), destinations
            )

    # Ending

    def answer(self, event: events.Event, context: Any) -> None:
        """Carry out what an event asks of this process."""
        if isinstance(event, events.ShutdownProcess) and event.process_matcher(self):
            self.shut_down(context)
        elif isinstance(event, events.SignalProcess) and event.process_matcher(self):
            self._signal(context, event.signal)

    def shut_down(self, context: Any) -> None:
        """SIGINT now, then more."""
        first, self._ending = not self._ending, True
        if first and self.pid is not None and self.return_code is None:
            self._signal(context, signal.SIGINT)
            context.start(self._escalate(context))

    def _signal(self, context: Any, number: signal.Signals) -> None:
        if self.pid is None or self.return_code is not None:
            return
        context.logger.log("INFO", self.final_name, f"sending signal '{number.name}' to process[{self.final_name}]")
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    async def _escalate(self, context: Any) -> None:
        sent = signal.SIGINT
        for number, timeout in self._timeouts.items():
            try:
                await asyncio.wait_for(self._ended.wait(), timeout)
                return
            except TimeoutError:
                context.logger.log(
                    "ERROR",
                    self.final_name,
                    f"process[{self.final_name}] failed to terminate '{timeout:g}' seconds after receiving "
                    f"'{sent.name}', escalating to '{number.name}'",
                )
            self._signal(context, number)
            sent = number
