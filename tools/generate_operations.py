#!/usr/bin/env python3
"""Write gradfix/analysis/operations.json from the tables that PyTorch's own code generator reads.

usage: generate_operations.py [OUTPUT]

`derivatives.yaml` says which operation has a derivative, `native_functions.yaml` which is a view, works in place,
makes a tensor from nothing or returns a Python number.  Both ship inside the torch wheel.  Overloads of one name are
merged: users write the name.
"""

import importlib.metadata
import importlib.util
import json
import re
import sys
from pathlib import Path

import yaml

SIGNATURE = re.compile(r"^(?P<name>\w+)(?:\.(?P<overload>\w+))?\((?P<args>.*)\)\s*->\s*(?P<returns>.*)$")
NUMBERS = {"Scalar", "bool", "int", "float", "SymInt", "SymBool", "ScalarType", "Layout", "int[]"}
# The tables don't give the dtype of a result: these return integers or booleans, so that nothing is recorded.
# tests/test_operations.py executes them.
INTEGER_RESULTS = {
    "argmax", "argmin", "argsort", "argwhere", "bincount", "bucketize", "count_nonzero", "isclose", "isfinite", "isin", "isinf", "isnan",
    "isneginf", "isposinf", "isreal", "logical_and", "logical_not", "logical_or", "logical_xor", "one_hot", "searchsorted", "signbit",
}


def packaged() -> Path:
    return Path(importlib.util.find_spec("torchgen").origin).parent / "packaged"


def derivatives(folder: Path) -> dict[str, dict]:
    """{name.overload: {argument: formula, …, output_differentiability: …}}"""
    out = {}
    for entry in yaml.safe_load((folder / "autograd" / "derivatives.yaml").read_text()):
        match = re.match(r"([\w.]+)\(", entry["name"])
        formulas = {k: v for k, v in entry.items() if k not in ("name", "result", "dispatch")}
        for table in (entry.get("dispatch") or {}).values():
            formulas.update({k: v for k, v in table.items() if k != "result"})
        out[match[1]] = formulas
    return out


def is_composite(entry) -> bool:
    """Made of other operations, whose derivatives it has (ATen's CompositeImplicitAutograd)."""
    dispatch = entry.get("dispatch")
    return not entry.get("structured_delegate") and (dispatch is None or any("CompositeImplicitAutograd" in key.split(", ") for key in dispatch))


def describe(entry, table) -> dict | None:
    match = SIGNATURE.match(entry["func"])
    name, overload, args, returns = match["name"], match["overload"], match["args"], match["returns"]
    if (overload or "").endswith("out") or "Tensor(a!) out" in args or name.startswith("_"):
        return None
    key = name + (f".{overload}" if overload else "")
    formulas = table.get(key)
    inplace = name.endswith("_") and not name.endswith("__")
    if formulas is None and inplace:
        formulas = table.get(name[:-1] + (f".{overload}" if overload else ""))
    tensors = re.findall(r"\bTensor(?:\([^)]*\))?\??(?:\[\d*\])?\??\s+(\w+)", args)
    factory = not tensors or name.endswith("_like") or name.startswith("new_")
    number = not re.search(r"Tensor", returns) and all(r.strip().split(" ")[0].rstrip("?") in NUMBERS for r in returns.strip("()").split(","))
    gradients = {k: str(v) for k, v in (formulas or {}).items() if k != "output_differentiability"}
    real = [v for v in gradients.values() if v not in ("non_differentiable",) and "not_implemented" not in v]
    outputs = (formulas or {}).get("output_differentiability")
    cut = None
    if number:
        cut = "number"
    elif factory:
        cut = None
    elif outputs is not None and not any(outputs):
        cut = "integer"
    elif name.rstrip("_") in INTEGER_RESULTS:
        cut = "integer"
    elif name in ("detach", "detach_", "detach_copy"):
        cut = "detach"
    elif formulas is None and not is_composite(entry) and not name.endswith("_copy"):
        cut = "raises"  # recorded, and backward says that there is no derivative
    zero = all(re.fullmatch(r"zeros_like\(grad\)|grad\.new_zeros_symint\(.*\)|at::zeros.*|zeros.*", v) for v in real) if real else None
    return {
        "differentiable": not number and not factory and cut is None,
        "zero": False if zero is None and is_composite(entry) else zero,  # None: this overload has no derivative of its own
        "cut": cut,
        "inplace": inplace,
        "view": bool(re.match(r"Tensor\(a\)", returns)),
        "factory": factory and not number,
        "variants": entry.get("variants", "function"),
    }


def generate() -> dict:
    folder = packaged()
    table = derivatives(folder)
    merged: dict[str, dict] = {}
    for entry in yaml.safe_load((folder / "ATen" / "native" / "native_functions.yaml").read_text()):
        facts = describe(entry, table)
        if facts is None:
            continue
        name = SIGNATURE.match(entry["func"])["name"]
        variants = {v.strip() for v in facts.pop("variants").split(",")}
        known = merged.get(name)
        if known is None:
            merged[name] = {**facts, "variants": variants}
            continue
        known["variants"] |= variants
        known["differentiable"] |= facts["differentiable"]
        known["zero"] = facts["zero"] if known["zero"] is None else known["zero"] and facts["zero"] is not False
        known["view"] |= facts["view"]
        known["factory"] |= facts["factory"]
        if known["cut"] != facts["cut"]:
            known["cut"] = None  # some overload keeps the history: never call it a cut
    operations = {}
    for name in sorted(merged):
        facts = merged[name]
        words = [w for w in ("differentiable", "zero", "inplace", "view", "factory") if facts[w]]
        if facts["cut"]:
            words.append(f"cut:{facts['cut']}")
        words += sorted(facts["variants"])
        operations[name] = " ".join(words)
    return {"torch": importlib.metadata.version("torch").split("+")[0], "operations": operations}


def main():
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "gradfix" / "analysis" / "operations.json"
    target.write_text(json.dumps(generate(), indent=0) + "\n")


if __name__ == "__main__":
    main()
