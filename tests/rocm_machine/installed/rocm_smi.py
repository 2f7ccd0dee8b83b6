"""``rocm-smi``, deprecated: fields by card, as text or JSON."""

import argparse
import json
import sys
from collections.abc import Callable

from rocm_machine.present import Device, Present, here

Fields = dict[str, str]


def shown(machine: Present) -> dict[str, Callable[[Device], Fields]]:
    def power(gpu: Device) -> Fields:
        if gpu["partition"]:
            return {}
        if gpu["is_secondary"]:
            return {"Average Graphics Package Power (W)": "N/A (Secondary die)"}
        return {"Current Socket Graphics Package Power (W)": f"{machine.power_w(gpu):.1f}"}

    def heat(gpu: Device) -> Fields:
        if gpu["partition"]:
            return {}
        heat = machine.heat_c(gpu)
        return {
            "Temperature (Sensor junction) (C)": f"{heat}.0",
            "Temperature (Sensor memory) (C)": f"{heat - 9}.0",
        }

    def clocks(gpu: Device) -> Fields:
        told = {"mclk": gpu["memory_clock_mhz"], "sclk": round(machine.clock_mhz(gpu))}
        fields = {}
        for name, clock in told.items():
            fields |= {f"{name} clock speed:": f"({clock}Mhz)", f"{name} clock level:": "1"}
        return fields

    return {
        "showid": lambda gpu: {"Device ID": f"0x{gpu['pci_id']}", "Device Rev": "0x0"},
        "showuniqueid": lambda gpu: {"Unique ID": f"0x{gpu['serial']}"},
        "showproductname": lambda gpu: {
            "Card Series": gpu["name"] or "N/A",
            "Card Model": f"0x{gpu['pci_id']}",
            "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
            "Node ID": str(gpu["node"]),
            "GUID": str(gpu["kfd_id"]),
            "GFX Version": gpu["arch"],
        },
        "showbus": lambda gpu: {"PCI Bus": gpu["bdf"].upper()},
        "showmeminfo": lambda gpu: {"VRAM Total Memory (B)": str(gpu["card_memory"])},
        "showmaxpower": lambda gpu: {"Max Graphics Package Power (W)": f"{gpu['cap_w']:.1f}"},
        "showcomputepartition": lambda gpu: {
            "Compute Partition": gpu["compute_partition"] or "N/A"
        },
        "showmemorypartition": lambda gpu: {"Memory Partition": gpu["memory_partition"] or "N/A"},
        "showclocks": clocks,
        "showpower": power,
        "showtemp": heat,
        "showuse": lambda gpu: {"GPU use (%)": str(machine.activity(gpu))},
    }


def main(arguments: list[str]) -> int:
    machine = here(__file__)
    ways = shown(machine)
    known = argparse.ArgumentParser(prog="rocm-smi", allow_abbrev=False)
    known.add_argument("--json", action="store_true")
    for name in ways:
        if name == "showmeminfo":
            known.add_argument("--showmeminfo", nargs="+", choices=["vram", "vis_vram", "gtt"])
        else:
            known.add_argument(f"--{name}", action="store_true")
    options = known.parse_args(arguments)
    asked = [way for name, way in ways.items() if getattr(options, name)]
    cards = {
        gpu["smi"]: {name: value for way in asked for name, value in way(gpu).items()}
        for gpu in machine.by_number
    }
    if options.json:
        told = {f"card{number}": fields for number, fields in cards.items()}
        sys.stdout.write(f"{json.dumps(told)}\n")
        return 0
    lines = [f"{' ROCm System Management Interface ':=^90}"]
    for number, fields in cards.items():
        lines += [f"GPU[{number}]\t\t: {name}: {value}" for name, value in fields.items()]
    lines.append(f"{' End of ROCm SMI Log ':=^90}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
