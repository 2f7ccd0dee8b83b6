"""What a made-up machine is and does at this moment, for the stand-ins that ask it.

Standard library only: ROCm's tools, its Python package and torch's devices are separate
processes, which meet in a folder.
"""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any

Device = dict[str, Any]

IDLE_MHZ = 143
IDLE_W = 139.0
IDLE_C = 37
WORKING_C = 61
RECENT_S = 2.0
"""So long a device counts as working after it has: a look takes some time, and may be late."""
TICKS_PER_S = 1000
REASONS = ("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal")
"""In the order of the kernel's table of metrics."""


class Present:
    """A machine's description, and what its processes do to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        about = json.loads((folder / "machine.json").read_text())
        self.devices: list[Device] = about["devices"]
        """In HIP's order."""
        self.rocm: str = about["rocm"]
        self.torch_rocm: str = about["torch_rocm"]
        self.hip: str = about["hip"]
        self.kernel_us: float = about["kernel_us"]
        self.driver: str | None = about["driver"]
        self.state = folder / "state"

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.rocm.split("."))

    @property
    def by_number(self) -> list[Device]:
        """The devices in the order of ``amd-smi``, which is that of the bus."""
        return sorted(self.devices, key=lambda device: device["smi"])

    def parts(self, device: Device) -> list[Device]:
        return [other for other in self.devices if other["card"] == device["card"]]

    # --- what processes do

    def hold(self, device: Device, memory: int) -> None:
        about = {"hip": device["hip"], "memory": memory, "name": "python3"}
        (self.state / "holders" / str(os.getpid())).write_text(json.dumps(about))

    def holders(self, device: Device) -> list[dict[str, Any]]:
        found = []
        for file in sorted((self.state / "holders").iterdir()):
            try:
                about = json.loads(file.read_text())
            except (OSError, ValueError):
                continue  # being written, or gone just now
            if not is_alive(int(file.name)):
                file.unlink(missing_ok=True)
            elif about["hip"] == device["hip"]:
                found.append({"pid": int(file.name), **about})
        return found

    def work_until(self, device: Device, when_s: float) -> None:
        """Note until when a device has work, on the monotonic clock."""
        number = os.open(self.state / "work", os.O_WRONLY)
        try:
            os.pwrite(number, struct.pack("d", when_s), 8 * device["hip"])
        finally:
            os.close(number)

    def is_working(self, device: Device) -> bool:
        """Whether a device has work, or had until just now."""
        (until,) = struct.unpack_from("d", (self.state / "work").read_bytes(), 8 * device["hip"])
        return bool(until > time.monotonic() - RECENT_S)

    # --- who reads its sensors

    def looked(self, card: str) -> None:
        """Note that this process reads a card's sensors now; the card is named by its address."""
        own = self.state / "looks" / str(os.getpid())
        partial = self.state / f".look.{own.name}"
        partial.write_text(f"{card} {time.monotonic()}")
        partial.replace(own)

    def wait_for_looks(self, device: Device, since: float) -> None:
        """Wait until every process that watches a device's card has read its sensors since then."""
        card = f"{device['bdf'][:-1]}0"
        for file in (self.state / "looks").iterdir():
            watched, last = file.read_text().split()
            while watched == card and float(last) < since and is_alive(int(file.name)):
                time.sleep(0.001)
                _, last = file.read_text().split()

    # --- what sensors say

    def clock_mhz(self, device: Device) -> float:
        return float(device["clock_mhz"]) if self.is_working(device) else IDLE_MHZ

    def clocks_mhz(self, device: Device) -> list[float]:
        """Tell the clock of each die of a card; one that is slow is the sixth, or the last."""
        clocks = [self.clock_mhz(part) for part in self.parts(device) for _ in range(part["dies"])]
        if "slow die" in device["quirks"]:
            clocks[min(5, len(clocks) - 1)] *= 0.6
        return clocks

    def power_w(self, device: Device) -> float:
        working = any(map(self.is_working, self.parts(device)))
        return round(0.8 * device["board_w"]) if working else IDLE_W

    def heat_c(self, device: Device) -> int:
        return WORKING_C if any(map(self.is_working, self.parts(device))) else IDLE_C

    def activity(self, device: Device) -> int:
        """Tell for what percentage of the time a device works."""
        return 97 if self.is_working(device) else 0

    @property
    def ticks(self) -> int:
        return int(time.monotonic() * TICKS_PER_S) % 2**31

    def counters(self, device: Device, now: int) -> dict[str, int]:
        """Tell how long a card was held back so far, in ticks, of which there were so many."""
        counts = {name: int(count) for name, count in self._held(device, now).items()}
        if "repeated clock" in device["quirks"]:
            counts |= dict.fromkeys(("ppt", "socket_thermal", "hbm_thermal"), now)
        return counts

    def _held(self, device: Device, now: int) -> dict[str, float]:
        """Go on counting the ticks for which a card that works is held back; at rest it is not."""
        file = self.state / f"held-{device['card']}"
        try:
            before = json.loads(file.read_text())
        except (OSError, ValueError):
            before = {"now": now, **dict.fromkeys(REASONS, 0.0)}
        passed = max(0, now - before["now"]) if self._works(device) else 0
        shares = device["held_back"]
        held = {name: before[name] + shares.get(name, 0.0) * passed for name in REASONS}
        if shares:
            partial = file.with_name(f".{file.name}.{os.getpid()}")
            partial.write_text(json.dumps({"now": now, **held}))
            partial.replace(file)
        return held

    def _works(self, device: Device) -> bool:
        return any(map(self.is_working, self.parts(device)))

    def flags(self, device: Device) -> int:
        """Tell why an older card is held back, as the kernel's word of flags."""
        bits = {"ppt": 0, "socket_thermal": 34, "vr_thermal": 38, "hbm_thermal": 34}
        shares = device["held_back"] if self._works(device) else {}
        held = sum(1 << bits[name] for name, share in shares.items() if share)
        return held | ("hotspot flag" in device["quirks"]) << 36


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def here(script: str) -> Present:
    """Find the machine that a laid-out file belongs to."""
    folder = Path(script).resolve().parent
    while not (folder / "machine.json").exists():
        folder = folder.parent
    return Present(folder)
