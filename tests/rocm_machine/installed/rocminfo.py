"""``rocminfo``: the agents that the runtime shows, in prose."""

import sys

from rocm_machine.present import Device, here

HEAD = """ROCk module is loaded
=====================
HSA System Attributes
=====================
Runtime Version:         1.18
Machine Model:           LARGE

==========
HSA Agents
==========
"""


def rule(number: int) -> str:
    return (
        f"*******                  \nAgent {number}                  \n*******                  \n"
    )


def agent(number: int, fields: dict[str, object], tail: str) -> str:
    lines = (f"  {name + ':':<25}{value}                 \n" for name, value in fields.items())
    return rule(number) + "".join(lines) + tail


def cpu(node: int) -> str:
    fields = {
        "Name": "AMD EPYC Processor of a made-up machine",
        "Uuid": "CPU-XX",
        "Vendor Name": "CPU",
        "Node": node,
        "Device Type": "CPU",
        "Chip ID": "0(0x0)",
        "Compute Unit": 64,
    }
    return agent(node + 1, fields, pool(1, "GLOBAL; FLAGS: FINE GRAINED", 2**40))


def pool(number: int, segment: str, size: int) -> str:
    kib = size // 1024
    return (
        f"    Pool {number}                   \n"
        f"      Segment:                 {segment}        \n"
        f"      Size:                    {kib}(0x{kib:x}) KB            \n"
        "      Allocatable:             TRUE                               \n"
    )


def gpu(number: int, device: Device) -> str:
    chip = int(device["pci_id"], 16)
    fields = {
        "Name": device["arch"],
        "Uuid": f"GPU-{device['hip_uuid']}",
        "Marketing Name": device["name"],
        "Vendor Name": "AMD",
        "Feature": "KERNEL_DISPATCH",
        "Node": device["node"],
        "Device Type": "GPU",
        "Chip ID": f"{chip}(0x{chip:x})",
        "BDFID": int(device["bdf"][5:7], 16) << 8,
        "Internal Node ID": device["node"],
        "Compute Unit": device["units"],
        "SIMDs per CU": 4,
        "Packet Processor uCode:": 138,
    }
    tail = "  Pool Info:               \n"
    tail += pool(1, "GLOBAL; FLAGS: COARSE GRAINED", device["memory"])
    tail += pool(2, "GLOBAL; FLAGS: EXTENDED FINE GRAINED", device["memory"])
    tail += pool(3, "GROUP", 65536)
    isa = f"amdgcn-amd-amdhsa--{device['arch']}:sramecc+:xnack-"
    return agent(number, fields, f"{tail}  ISA Info:\n    ISA 1\n      Name:           {isa}\n")


def main() -> int:
    machine = here(__file__)
    first = min(device["node"] for device in machine.devices)
    text = HEAD + "".join(map(cpu, range(first)))
    for device in sorted(machine.devices, key=lambda device: device["node"]):
        text += gpu(device["node"] + 1, device)
    sys.stdout.write(text + "*** Done ***             \n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
