"""``rocminfo``, which asks the runtime that HIP stands on and prints prose."""

from __future__ import annotations

import re

from bench_lib.backends.amd.tools import written
from bench_lib.backends.amd.tools.written import figure, whole
from bench_lib.backends.tool import ToolError
from bench_lib.model import Hardware

_AGENT = re.compile(r"^\*+[ ]*\nAgent \d+[ ]*\n\*+[ ]*\n", re.MULTILINE)
_FIELD = re.compile(r"^[ ]{2}(\S[^:\n]*):[ ]*(.*?)[ ]*$", re.MULTILINE)
_POOL = re.compile(
    r"^[ ]+Segment:[ ]*GLOBAL\b.*\n[ ]+Size:[ ]*(\d+)[ ]*(?:\(0x[0-9a-f]+\))?[ ]*([KMG]?B)",
    re.MULTILINE,
)
_ISA = re.compile(r"amdgcn-amd-amdhsa--(gfx[0-9a-f]+)")


def identities(text: str) -> list[Hardware]:
    """Describe the GPUs among the agents, in HIP's order, which is that of their nodes.

    Without PCI addresses: rocminfo does not print their domain.  Under WSL it does not print uuids
    either.  Raises ToolError if there is no agent at all.
    """
    agents = _AGENT.split(text)[1:]
    if not agents:
        said = text.strip()[:80] or "nothing"
        raise ToolError(f"rocminfo printed no agent: {said!r}")
    fields = [dict(reversed(_FIELD.findall(agent))) for agent in agents]
    gpus = [
        (about, agent)
        for about, agent in zip(fields, agents, strict=True)
        if about.get("Device Type") == "GPU"
    ]
    nodes = [_number(about, "Node") for about, _ in gpus]
    return [_identity(*gpu) for gpu in written.in_order(gpus, nodes)]


def _identity(about: dict[str, str], agent: str) -> Hardware:
    isa = _ISA.search(agent)
    # One memory, offered as several pools that differ in how they are cached.
    pools = [figure(f"{size} {unit}", "B") or 0.0 for size, unit in _POOL.findall(agent)]
    return Hardware(
        vendor="amd",
        name="",
        key="",
        arch=written.arch(about.get("Name")) or (written.arch(isa[1]) if isa else None),
        pci_device_id=written.pci_id(_number(about, "Chip ID")),
        uuid=written.uuid(about.get("Uuid")),
        compute_units=_number(about, "Compute Unit") or None,
        memory_bytes=int(max(pools, default=0)) or None,
    )


def _number(about: dict[str, str], name: str) -> int | None:
    """Return a number that may be followed by itself in hexadecimal, as ``29857(0x74a1)``."""
    return whole(about.get(name, "").partition("(")[0])
