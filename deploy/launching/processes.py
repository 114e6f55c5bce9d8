"""Stand-in of `launch.actions.ExecuteProcess`: starts a process, forwards what it prints, ends it when the launch ends.

A process leads a session of its own, and a signal goes to all its descendants that did not leave it: what Ctrl-C does
in a terminal. First SIGINT; after `sigterm_timeout` seconds SIGTERM; after `sigkill_timeout` more SIGKILL. Their
defaults are ROS 2's, too short for a landing: what flies a robot is started with those of `deploy.launching.files`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from asyncio.subprocess import Process
from collections.abc import Iterable
from dataclasses import dataclass

from deploy.launching import events
from deploy.launching.context import Action, LaunchContext, LaunchError, unsupported

LAST_WORDS = 1.0  # s: how long a dead process's output may stay open because a descendant holds it


@dataclass(eq=False, kw_only=True)
class ExecuteProcess(Action):
    """A process to start."""

    cmd: Iterable[str]
    name: str | None = None
    output: str = "log"
    sigterm_timeout: float | str = 5.0
    sigkill_timeout: float | str = 5.0

    def __post_init__(self) -> None:
        self.running = False
        self._words: list[str] = []
        self._label = ""  # the name of the executable and a number
        if self.output != "screen":
            raise unsupported(f"output={self.output!r} (here it is 'screen')")

    def command(self, context: LaunchContext) -> list[str]:
        """The words of the command."""
        return list(self.cmd)

    def executable_name(self) -> str:
        """What to call the process."""
        return self.name or os.path.basename(self._words[0])

    def execute(self, context: LaunchContext) -> None:
        self._words = self.command(context)
        self._label = f"{self.executable_name()}-{next(context.numbers)}"
        if not context.is_shutdown:
            self.running = True
            context.start(self._run(context))

    async def _run(self, context: LaunchContext) -> None:
        try:
            await self._live(context)
        finally:
            self.running = False

    async def _live(self, context: LaunchContext) -> None:
        """Start it and wait until it has ended."""
        channels = [os.pipe() for _ in ("stdout", "stderr")]
        readers = [asyncio.ensure_future(self._forward(context, start)) for start, _ in channels]
        try:
            process = await self._spawn(*(end for _, end in channels))
        finally:
            for _, end in channels:
                os.close(end)
        ending = asyncio.ensure_future(self._end(context, process))
        context.log.say("INFO", self._label, f"process started with pid [{process.pid}]")
        context.emit_event_sync(events.ProcessStarted(action=self, process_name=self._label, pid=process.pid))
        status = await process.wait()
        ending.cancel()
        await asyncio.wait(readers, timeout=LAST_WORDS)
        for reader in readers:
            reader.cancel()
        self._report(context, process.pid, status)

    async def _spawn(self, stdout: int, stderr: int) -> Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._words, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, start_new_session=True
            )
        except OSError as error:
            raise LaunchError(f"cannot start {self._label}: {self._words[0]!r}: {error.strerror}") from None

    async def _forward(self, context: LaunchContext, descriptor: int) -> None:
        """Pass on what the process writes, line by line."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
        )
        rest = b""
        try:
            while chunk := await reader.read(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._print(context, line)
        finally:
            if rest:
                self._print(context, rest)
            transport.close()

    def _print(self, context: LaunchContext, line: bytes) -> None:
        context.log.output(f"[{self._label}] {line.decode(errors='replace').removesuffix(chr(13))}")

    def _report(self, context: LaunchContext, pid: int, status: int) -> None:
        if status == 0:
            context.log.say("INFO", self._label, f"process has finished cleanly [pid {pid}]")
        else:
            said = f"[pid {pid}, exit code {status}, cmd '{' '.join(self._words)}']"
            context.log.say("ERROR", self._label, f"process has died {said}.")
        event = events.ProcessExited(action=self, process_name=self._label, pid=pid, returncode=status)
        context.emit_event_sync(event)

    async def _end(self, context: LaunchContext, process: Process) -> None:
        """When the launch ends, end the process: politely first."""
        await context.ending.wait()
        self._signal(context, process, signal.SIGINT)
        sent = signal.SIGINT
        for number, timeout in ((signal.SIGTERM, self.sigterm_timeout), (signal.SIGKILL, self.sigkill_timeout)):
            try:
                await asyncio.wait_for(process.wait(), float(timeout))
                return
            except TimeoutError:
                said = f"failed to terminate '{float(timeout):g}' seconds after receiving '{sent.name}'"
                said = f"process[{self._label}] {said}, escalating to '{number.name}'"
                context.log.say("ERROR", self._label, said)
            self._signal(context, process, number)
            sent = number

    def _signal(self, context: LaunchContext, process: Process, number: signal.Signals) -> None:
        if process.returncode is not None:
            return
        context.log.say("INFO", self._label, f"sending signal '{number.name}' to process[{self._label}]")
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:  # it has just ended
            return
