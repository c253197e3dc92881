"""What `bellmetal bench cpu` and `bench gpu` run in a python3 process: other people's libraries, timed.

One JSON object a line on stdin, one answer a line on stdout.
"""
import json
import os
import sys
import time

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print is no answer

try:
    import numpy as np
except ImportError:
    print(json.dumps({"error": "no NumPy"}), file=answers, flush=True)
    sys.exit(1)
try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = F = None
try:
    import onnxruntime
except ImportError:
    onnxruntime = None

tensors, functions, threads, gpu = {}, {}, 1, None


def hello(command):
    global threads
    threads = command["threads"]
    if torch:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__ if torch else "",
        "compile": bool(torch) and hasattr(torch, "compile"),
        "onnxruntime": onnxruntime.__version__ if onnxruntime else "",
    }


def use_gpu(command):
    global gpu
    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch sees no GPU")
    gpu = torch.device("cuda", command["unit"])
    return {"name": torch.cuda.get_device_name(gpu)}


def finish():
    if gpu:
        torch.cuda.synchronize(gpu)


def load(command):
    dtype = command["dtype"]
    raw = np.fromfile(command["path"], dtype="int16" if dtype == "bfloat16" else dtype)
    raw = raw.reshape(command["shape"])
    if torch:
        tensor = torch.from_numpy(raw)
        tensor = tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
        tensors[command["name"]] = tensor.to(gpu) if gpu else tensor
    else:
        tensors[command["name"]] = raw
    return {}


def define(command):
    scope = dict(tensors, torch=torch, F=F, np=np)
    exec(command.get("code", ""), scope)
    function = eval("lambda: " + command["expression"], scope)
    if command.get("compile"):
        function = torch.compile(function)
    functions[command["name"]] = function
    return {}


def onnx(command):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(command["path"], options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: np.asarray(tensors[command["input"]])}
    functions[command["name"]] = lambda: session.run(None, feed)[0]
    return {}


def run(command):
    function = functions[command["name"]]
    finish()
    start = time.perf_counter()
    for _ in range(command["calls"]):
        function()
    finish()
    return {"seconds": time.perf_counter() - start}


def result(command):
    value = functions[command["name"]]()
    if not isinstance(value, np.ndarray):
        value = value.float().contiguous().cpu().numpy()
    np.ascontiguousarray(value, dtype="float32").tofile(command["path"])
    return {"count": int(value.size)}


def clear(command):
    tensors.clear()
    functions.clear()
    return {}


for line in sys.stdin:
    command = json.loads(line)
    try:
        answer = globals()[command["op"]](command)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other side wants to know
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), file=answers, flush=True)
