"""Serve HTTP: find what a start needs before it takes long, start the ring, and answer until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from radixlang.config import Config
from radixlang.errors import ConfigError, EngineDeadError, ModelError
from radixlang.hub_files import resolve_model_path
from radixlang.log import configure, get_logger
from radixlang.messages import Drain
from radixlang.ring import ProcessRing, ProgressHook, RingReader

if TYPE_CHECKING:
    from radixlang.server.hub import Hub

log = get_logger(__name__)

WARM_UP_TIMEOUT = 300.0
"""seconds for the first trial request"""

FILES = 65536
"""open files to ask the system for"""
FEW_FILES = 1024
"""open files below which there is a warning"""

BACKLOG = 2048
"""connections that may wait to be accepted"""


def check_port(host: str, port: int) -> socket.socket:
    """Bind the address now, so that a taken port is found before weights load.

    Raises:
        ConfigError: the address is in use or not ours.
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"--host {host!r} is no address of this machine: {error.strerror}.") from None
    family, kind, protocol, _, address = infos[0]
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        # Linux would let another server that is still loading have the port too, as long as both say so.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        bound.close()
        raise port_error(host, port, error) from None
    return bound


def open_port(bound: socket.socket) -> None:
    """Take connections on what `check_port` has bound. They inherit the permission to bind their port again, which
    the next server needs while they fade away."""
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.listen(BACKLOG)


def port_error(host: str, port: int, error: OSError) -> ConfigError:
    """The one line for an address that cannot be had."""
    return ConfigError(f"Cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}; choose another --port.")


def with_model_files(config: Config) -> Config:
    """`config` with the names of model and tokenizer replaced by their paths on this machine, fetched if they have
    to be; clients may still use the model's name. Every process then finds the same files.

    Raises:
        ModelError: one of the two cannot be fetched, or its path does not exist.
    """
    named = config.model.model_path
    path = resolve_model_path(named, config.model.download_dir, config.model.revision)
    tokenizer = None if config.model.skip_tokenizer_init else config.model.tokenizer_path
    if tokenizer is not None:
        if tokenizer == named:  # and of the same revision
            found = path
        else:
            try:
                found = resolve_model_path(tokenizer, config.model.download_dir)
            except ModelError as error:
                raise ModelError(f"--tokenizer-path: {error}") from None
        config = config.replace(tokenizer_path=found)
    if path == named:
        return config
    return config.replace(
        model_path=path, revision=None, served_model_name=config.model.served_model_name or named
    )


def allow_files() -> None:
    """Let this process, and those it starts, have as many files open as the system allows: a connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower limit that they do not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if 0 < soft < FEW_FILES:
        log.warning("only %d files may be open, and connections beyond that are dropped; raise ulimit -n", soft)


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the server's event loop: uvloop where it is installed, for cheaper sockets; None: asyncio."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def serve(config: Config, progress: ProgressHook | None = None, ready: Callable[[str], None] | None = None) -> int:
    """Start everything and serve HTTP until a signal or a death. → exit code.

    `ready` is called with the server's URL once the port is open.

    Raises:
        ConfigError, ModelError: before anything is served.
    """
    config = config.resolve()
    configure(config.log.log_level, "server", ("uvicorn", "asyncio"))
    allow_files()
    bound = check_port(config.server.host, config.server.port)
    try:
        # The port comes first: it must not be taken when a long download ends.
        return _serve(with_model_files(config), bound, progress, ready)
    finally:
        bound.close()


def _serve(
    config: Config, bound: socket.socket, progress: ProgressHook | None, ready: Callable[[str], None] | None
) -> int:
    started = time.monotonic()
    # The heavy imports of this process run while the engine process imports torch and loads weights.
    imported: dict[str, Any] = {}

    def prepare() -> None:
        try:
            from radixlang.server.app import create_app
            from radixlang.server.connection import http_server
            from radixlang.server.hub import Hub
            from radixlang.text.worker import load_for

            imported["modules"] = (http_server, create_app, Hub)
            imported["loop"] = fast_loop()
            imported["tokenizer"] = load_for(config)
        except BaseException as error:
            imported["error"] = error

    side = threading.Thread(target=prepare, name="prepare")
    side.start()
    try:
        ring = ProcessRing(config, progress)
    finally:
        side.join()
    try:
        if "error" in imported:
            raise imported["error"]
        http_server, create_app, hub_type = imported["modules"]
        with asyncio.Runner(loop_factory=imported["loop"]) as runner:
            return runner.run(
                _serve_ring(
                    config, bound, ring, http_server, create_app, hub_type, imported["tokenizer"], started, ready
                )
            )
    finally:
        ring.close()


async def _serve_ring(
    config: Config,
    bound: socket.socket,
    ring: ProcessRing,
    http_server: Callable[[Any], Any],
    create_app: Any,
    hub_type: type[Hub],
    tokenizer: Any,
    started: float,
    ready: Callable[[str], None] | None,
) -> int:
    hub = hub_type(config, tokenizer, ring.info, ring.to_engine)
    server = http_server(create_app(hub, config))
    gc.collect()
    gc.freeze()  # modules and tokenizer: no later pass needs to look at them
    loop = asyncio.get_running_loop()
    state = {"code": 0, "ended": False}
    draining = asyncio.Event()

    def ended() -> None:
        if not draining.is_set():
            state["code"] = 1
            server.should_exit = True
        state["ended"] = True

    reader = RingReader(ring, hub, loop, ended)

    def drain() -> None:
        if not draining.is_set():
            draining.set()
        elif not server.should_exit:
            log.warning("second signal: leaving at once, %d requests are cut off", hub.running)
            hub.fail_all(EngineDeadError("The server is shutting down."))
            server.should_exit = True
        else:  # who does not take even that is left alone
            server.force_exit = True

    async def drain_then_exit() -> None:
        await draining.wait()
        hub.draining = True
        log.info("draining: %d requests still running", hub.running)
        ring.to_engine.send(Drain())
        deadline = loop.time() + config.server.drain_timeout
        while hub.running and not state["ended"] and loop.time() < deadline:
            await asyncio.sleep(0.02)
        if hub.running:
            log.warning("%d requests did not end within --drain-timeout and are cut off", hub.running)
            hub.fail_all(EngineDeadError("The server is shutting down."))
        else:
            while not (ring.left or server.should_exit) and loop.time() < deadline:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.05)  # let the last chunks reach their sockets
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, drain)
    # uvicorn would install handlers of its own that stop without draining.
    server.capture_signals = contextlib.nullcontext
    leaver = asyncio.create_task(drain_then_exit())
    try:
        try:
            open_port(bound)
        except OSError as error:  # another server took the port while this one was loading
            raise port_error(config.server.host, config.server.port, error) from None
        if not config.server.skip_server_warmup and not draining.is_set():
            await hub.probe(WARM_UP_TIMEOUT)
        host, port = bound.getsockname()[:2]
        url = f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"
        log.info("ready in %.1f s: %s serves %s", time.monotonic() - started, url, config.model_name)
        if ready is not None:
            ready(url)
        await server.serve(sockets=[bound])
    finally:
        leaver.cancel()
        reader.stop()
    return int(state["code"])
