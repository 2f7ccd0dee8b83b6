"""``bench-lib env``: what is here, what is missing or suspicious, and what to do about it."""

from __future__ import annotations

from typing import Any

import typer

from bench_lib.cli.output import Json, print_json

MARKS = {True: "ok  ", False: "FAIL", None: "  - "}


def env(*, json: Json = False) -> None:
    """Show hardware, versions, variables and caches; exit status 1 where a check fails."""
    from dataclasses import asdict

    from bench_lib import fingerprint, hardware

    devices = hardware.detect()
    versions, problem = _worker_versions(devices[0])
    environment = fingerprint.with_versions(fingerprint.collect(), versions)
    checks = fingerprint.checks(devices=devices)
    checks.append(
        fingerprint.Check(
            "worker starts",
            problem is None,
            f"torch {versions.get('torch')}" if problem is None else problem,
            "" if problem is None else "mend what the message above names, then run this again",
        )
    )
    fit = all(check.ok is not False for check in checks)
    if json:
        print_json(
            {
                "devices": devices,
                "environment": environment,
                "checks": [asdict(check) for check in checks],
                "fit": fit,
            }
        )
    else:
        _print(devices, environment, checks)
    raise typer.Exit(0 if fit else 1)


def _worker_versions(device: Any) -> tuple[dict[str, str | None], str | None]:
    """Return what a worker says of its torch, and why it could not start if it could not."""
    from bench_lib import hardware
    from bench_lib.launch import LaunchError, Zygote

    try:
        with Zygote(environment=hardware.visibility(device)) as zygote:
            context = zygote.context()
            differences = hardware.confirm(device, context.device)
            return {**zygote.versions, "cudnn": context.cudnn}, "; ".join(differences) or None
    except LaunchError as error:
        return {}, str(error)


def _print(devices: list[Any], environment: Any, checks: list[Any]) -> None:
    from dataclasses import fields

    print("Devices")
    for device in devices:
        print(f"  {device.index}  {device.key}  {device.name}")
        for name, text in _about(device):
            print(f"     {name:<12} {text}")
    print("\nEnvironment")
    for field in fields(environment):
        value = getattr(environment, field.name)
        if value in (None, {}):
            continue
        if isinstance(value, dict):
            for name, text in sorted(value.items()):
                print(f"  {name:<14} {text}")
        else:
            print(f"  {field.name:<14} {value}")
    print("\nChecks")
    for check in checks:
        print(f"  {MARKS[check.ok]}  {check.name}: {check.detail}")
        if check.ok is False and check.remedy:
            print(f"        → {check.remedy}")


def _about(device: Any) -> list[tuple[str, str]]:
    peaks = ", ".join(f"{name} {value:g}" for name, value in sorted(device.peak_tflops.items()))
    partition = [p for p in (device.compute_partition, device.memory_partition) if p]
    lines = [
        ("arch", device.arch),
        ("pci", " ".join(p for p in (device.bdf, device.pci_device_id) if p)),
        ("uuid", device.uuid),
        ("units", device.compute_units),
        ("memory", device.memory_bytes and f"{device.memory_bytes / 2**30:.1f} GiB"),
        ("partition", "/".join(partition)),
        ("power cap", device.power_cap_w and f"{device.power_cap_w:g} W"),
        ("peak TFLOPS", peaks),
        ("peak GB/s", device.peak_gb_per_s and f"{device.peak_gb_per_s:g}"),
    ]
    return [(name, str(value)) for name, value in lines if value]
