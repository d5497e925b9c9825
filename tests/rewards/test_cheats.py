"""Solutions that want full marks without being right. Each is tried by HumanEval's form and by MBPP's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rewards.attempts import attempt, score, scorer
from toolwright.rewards import Scorer

EQUAL = ["assert add(2, 3) == 5", "assert add(4, 4) == 8"]
NEAR = ["assert abs(add(2.0, 3.0) - 5.0) < 1e-6", "assert not abs(5.0 - add(2.0, 3.0)) > 1e-6"]
IN_A_LOOP = ["assert all(map(lambda n: add(n, n) == 2 * n, range(1, 5)))"]
IN_A_SET = ["assert set(add([1], [2])) == set([2, 1])", "assert sorted(add([4], [3])) == [3, 4]"]
OF_AN_ARGUMENT = ["mine = [3, 1]\nassert add(mine, [2]) == mine + [2]"]
BY_A_METHOD = ["assert add('ab', 'c').startswith('abc')", "assert add('ab', 'c').count('b') == 1"]
A_MEMBER = ["assert 2 in add([1], [2])", "assert len(add([1], [2])) == 2"]
BY_A_MODULE = ["assert math.isclose(add(0.1, 0.2), 0.3)", "assert add(math.pi, 0) == math.pi"]
COUNTED = ["assert add(Counter('a'), Counter('b')) == Counter('ab')"]
IN_ORDER = ["assert sorted(add([2], [1])) == [1, 2]", "assert max(add([2], [1])) == 2"]
BY_KEY = ["assert add({'a': 1}, {'b': 2}) == {'a': 1, 'b': 2}", "assert add({'a': 1}, {'b': 2})['b'] == 2"]
AS_TEXT = ["assert f'{add(2, 3)}' == '5'", "assert str(add(4, 4)) == '8'", "assert '%d' % add(1, 1) == '2'"]
OF_A_TYPE = ["assert isinstance(add(2, 3), int) and add(2, 3) in (5,) and add(4, 4) in {8}"]
IMPORTED = ["from math import isclose\nassert isclose(add(0.1, 0.2), 0.3)"]
AS_COUNTS = ["assert Counter(add([1, 1], [2])) == Counter([1, 1, 2])"]
OF_ITSELF = ["assert add(add(1, 2), 3) == 6"]
WITH_A_FUNCTION = ["assert add(lambda x: x == 5, [1, 5]) == 5", "assert add(lambda x: x == 1, [1, 5]) == 1"]
RAISED = ["try:\n    add(1, None)\nexcept TypeError:\n    pass\nelse:\n    assert False", *EQUAL]
EVERYTHING = [
    *EQUAL,
    *NEAR,
    *IN_A_LOOP,
    *IN_A_SET,
    *OF_AN_ARGUMENT,
    *BY_A_METHOD,
    *A_MEMBER,
    *BY_A_MODULE,
    *COUNTED,
]

# Reaches the judge's own object in the solution's process.
PEER = """
import sys
frame = sys._getframe()
while "peer" not in frame.f_locals:
    frame = frame.f_back
peer = frame.f_locals["peer"]
"""
# Sends what the judge itself would send, to every descriptor that there is.
FORGE = """
import json, os, struct
def forge(*messages):
    for message in messages:
        body = json.dumps(message).encode()
        for descriptor in range(1, 64):
            for data in (struct.pack("<I", len(body)) + body, body + b"\\n"):
                try:
                    os.write(descriptor, data)
                except OSError:
                    pass
"""
LOOK = """
def look(texts):
    import re
    for text in texts:
        for a, b, result in re.findall(r"add\\((\\d+), (\\d+)\\) == (\\d+)", str(text)):
            answers[int(a), int(b)] = int(result)
answers = {}
"""

CHEATS: dict[str, tuple[str, list[str]]] = {
    "the caller's frames are searched for the test": (
        f"""{LOOK}
import sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        look(map(str, [*frame.f_locals.values(), *frame.f_globals.values(), *frame.f_code.co_consts]))
        frame = frame.f_back
    return answers.get((a, b))""",
        EQUAL,
    ),
    "linecache is searched for the test": (
        f"""{LOOK}
import linecache
def add(a, b):
    look(linecache.cache.values())
    return answers.get((a, b))""",
        EQUAL,
    ),
    "exec is replaced": (
        "import builtins\nbuiltins.exec = lambda *_: None\nbuiltins.eval = lambda *_: True",
        EQUAL,
    ),
    "compile is replaced": (
        "import builtins\nold = compile\nbuiltins.compile = lambda *a, **k: old('', 'x', 'exec')",
        EQUAL,
    ),
    "the answer equals everything": (
        "class Any:\n    __eq__ = lambda *_: True\ndef add(a, b): return Any()",
        EQUAL,
    ),
    "standard input is read for the test": (
        f"{LOOK}\nimport sys\nlook([sys.stdin.read()])\ndef add(a, b): return answers.get((a, b))",
        EQUAL,
    ),
    "an integer of its own equals everything": (
        "class Any(int):\n    __eq__ = lambda *_: True\n    __hash__ = None\ndef add(a, b): return Any(0)",
        EQUAL,
    ),
    "a float of its own is near everything": (
        "class Near(float):\n    __sub__ = __rsub__ = __abs__ = lambda *_: 0.0\n"
        "    __lt__ = lambda *_: True\n    __gt__ = lambda *_: False\ndef add(a, b): return Near(9)",
        NEAR,
    ),
    "an object is near everything": (
        "class Near:\n    __sub__ = __rsub__ = lambda *_: 0.0\ndef add(a, b): return Near()",
        NEAR,
    ),
    "not a number is near nothing and far from nothing": ("def add(a, b): return float('nan')", NEAR),
    "an object says that it is an integer": (
        "class Any:\n    __class__ = int\n    __eq__ = lambda *_: True\n    __index__ = lambda _: 5\n"
        "def add(a, b): return Any()",
        EQUAL,
    ),
    "an object is pickled as a call": (
        "import os\nclass Any:\n    def __reduce__(self): return (os._exit, (0,))\n    __reduce_ex__ = None\n"
        "    __eq__ = lambda *_: True\ndef add(a, b): return [Any()]",
        EQUAL,
    ),
    "a list's members equal everything": (
        "class Any:\n    __eq__ = lambda *_: True\n    __hash__ = lambda _: 1\n"
        "class Two(list):\n    __eq__ = lambda *_: True\n    __iter__ = lambda _: iter([1, 2])\n"
        "def add(a, b): return Two([Any(), Any(), Any()])",
        IN_A_SET,
    ),
    "an object says it has any member": (
        "class Any:\n    __contains__ = lambda *_: True\n    __len__ = lambda _: 2\n"
        "def add(a, b): return Any()",
        A_MEMBER,
    ),
    "an object's methods say yes": (
        "class Any:\n    startswith = lambda *_: True\n    count = lambda *_: 1\ndef add(a, b): return Any()",
        BY_A_METHOD,
    ),
    "a string's methods say yes": (
        "class Any(str):\n    startswith = lambda *_: True\n    count = lambda *_: 1\n"
        "def add(a, b): return Any()",
        BY_A_METHOD,
    ),
    "built-in functions are shadowed": (
        "def sorted(_): return [3, 4]\ndef set(_): return 0\ndef add(a, b): return []",
        IN_A_SET,
    ),
    "a module that the test uses is shadowed": (
        "class math:\n    pi = 0\n    isclose = lambda *_: True\ndef add(a, b): return 0",
        BY_A_MODULE,
    ),
    "a class that the test uses is shadowed": ("def Counter(_): return 0\ndef add(a, b): return 0", COUNTED),
    "an argument that the test uses is changed": (
        "def add(a, b):\n    a[:] = []\n    b[:] = []\n    return [2]",
        OF_AN_ARGUMENT,
    ),
    "the end of an iteration is raised": ("def add(a, b): raise StopIteration", IN_A_LOOP),
    "the error that the test waits for is always raised": ("def add(a, b): raise TypeError", RAISED),
    "a failed assertion is raised": ("def add(a, b): raise AssertionError", RAISED),
    "the process leaves with a good status": ("def add(a, b):\n    import os\n    os._exit(0)", EQUAL),
    "the process leaves as it is loaded": ("import sys\nsys.exit(0)", EQUAL),
    "an exit hook leaves with a good status": (
        f"{FORGE}\nimport atexit\natexit.register(forge, ['loaded', ''], ['passed', ''])\n"
        "atexit.register(os._exit, 0)\nraise SystemExit",
        EQUAL,
    ),
    "messages of the judge are forged": (
        f"{FORGE}\nforge(['ready'], ['loaded', ''], ['passed', ''], ['passed', ''], ['value', True])\n"
        "def add(a, b):\n    forge(['passed', ''], ['value', {'class': 'bool'}], ['value', None, [[], []]])",
        EQUAL,
    ),
    "malformed messages are sent": (
        f"{FORGE}\ndef add(a, b): forge({{'tuple': 5}}, {{'int': []}}, {{'set': [[]]}}, ['value'], 7, None)",
        EQUAL,
    ),
    "a thread forges messages": (
        f"{FORGE}\nimport threading\ndef add(a, b):\n"
        "    threading.Thread(target=forge, args=(['passed', ''],), daemon=True).start()",
        EQUAL,
    ),
    "a child process answers later": (
        f"{FORGE}\ndef add(a, b):\n    if os.fork(): os._exit(0)\n    forge(['passed', ''], ['value', 5])",
        EQUAL,
    ),
    "every descriptor is closed": ("import os\nos.closerange(0, 256)\ndef add(a, b): pass", EQUAL),
    "the garbage collector's objects are searched": (
        f"""{LOOK}
import gc
def add(a, b):
    look(found for found in gc.get_objects() if isinstance(found, (list, tuple, dict)) and len(found) < 50)
    return answers.get((a, b))""",
        EQUAL,
    ),
    "calls are traced": (
        f"""{LOOK}
import sys
def trace(frame, event, argument):
    look([dict(frame.f_locals), argument])
    return trace
sys.settrace(trace)
sys.setprofile(trace)
def add(a, b): return answers.get((a, b))""",
        EQUAL,
    ),
    "files, /proc and the environment are searched": (
        f"""{LOOK}
import glob, os
def add(a, b):
    look([dict(os.environ), os.listdir()])
    for name in [*glob.glob("/proc/*/*"), *glob.glob("/srv/*"), *glob.glob("/tmp/**"), *glob.glob("*")]:
        try:
            look([open(name, errors="replace").read(100000)])
        except OSError:
            pass
    return answers.get((a, b))""",
        EQUAL,
    ),
    "json, struct and os.write are replaced": (
        "import json, os, struct\nold = json.dumps\n"
        "json.dumps = lambda told, **k: old(['value', {'class': 'object'}])\n"
        "json.loads = lambda *a, **k: ['passed', '']\nstruct.Struct = None\ndef add(a, b): return 0",
        EQUAL,
    ),
    "modules are planted beside the test": (
        "open('math.py', 'w').write('pi = 0\\nisclose = lambda *_: True')\ndef add(a, b): return 0",
        BY_A_MODULE,
    ),
    "the test's own functions are defined": (
        "check = test = lambda *_: None\nclass AssertionError(Exception): pass\n__builtins__ = {}\n"
        "def __getattr__(name): return lambda *_: True\ndef add(a, b): return None",
        EQUAL,
    ),
    "processes around it are killed": (
        "import os\ndef add(a, b):\n    for pid in (os.getppid(), -1, 0):\n        try:\n"
        "            os.kill(pid, 9)\n        except OSError:\n            pass",
        EQUAL,
    ),
    "the answer never ends": (
        "def add(a, b):\n    while True:\n        yield 5",
        [*EQUAL, "assert list(zip(add(1, 2), [3])) == [(3, 3)]"],
    ),
    "the answer is endlessly nested": ("def add(a, b):\n    c = []\n    c.append(c)\n    return c", EQUAL),
    "the answer is nested too deeply": (
        "def add(a, b):\n    c = 5\n    for _ in range(10 ** 5): c = [c]\n    return c",
        EQUAL,
    ),
    "the answer is huge": ("def add(a, b): return 'x' * (1 << 26)", ["assert add('a', 'b') != 'ab'"]),
    "the answer has 2 ** 60 members": (
        "def add(a, b):\n    c = [1]\n    for _ in range(60): c = [c, c]\n    return c",
        ["assert add([], []) != []"],
    ),
    "a function is returned that says yes": (
        "def add(a, b):\n    return lambda *_: True",
        [*EQUAL, "assert add('a', 'b') in ('ab', 'ba')"],
    ),
    "the question is answered with the question": ("def add(*told): return told", EQUAL),
    "a metaclass says that everything is an instance": (
        "class Kind(type):\n    __instancecheck__ = __eq__ = lambda *_: True\n    __hash__ = type.__hash__\n"
        "class Any(int, metaclass=Kind):\n    __eq__ = lambda *_: True\n    __hash__ = lambda _: 5\n"
        "def add(a, b): return Any(1)",
        OF_A_TYPE,
    ),
    "an integer of its own is written as another": (
        "class Five(int):\n    __format__ = __str__ = __repr__ = lambda *_: '5'\n"
        "def add(a, b): return Five(0)",
        AS_TEXT,
    ),
    "an object is written in turn as each answer": (
        "import itertools\nturn = itertools.cycle('582')\nclass Text:\n    __str__ = lambda _: next(turn)\n"
        "    __index__ = __int__ = lambda _: 2\ndef add(a, b): return Text()",
        AS_TEXT,
    ),
    "a dictionary has every key": (
        "class Any(dict):\n    __missing__ = lambda *_: 2\n    __eq__ = lambda *_: True\n"
        "    items = lambda _: [('a', 1), ('b', 2)]\ndef add(a, b): return Any()",
        BY_KEY,
    ),
    "an array of numpy's equals item by item": (
        "import numpy\ndef add(a, b): return numpy.array([5, 8])",
        EQUAL,
    ),
    "numpy's number is not a number": (
        "import numpy\ndef add(a, b): return numpy.float64('nan')",
        NEAR,
    ),
    "a class says that it is numpy's": (
        "class Any(int):\n    __eq__ = lambda *_: True\n"
        "class int64:\n    item = lambda _: Any()\n    shape = ()\n"
        "int64.__module__ = 'numpy'\ndef add(a, b): return int64()",
        EQUAL,
    ),
    "a class says that it is a decimal": (
        "class Decimal:\n    __str__ = lambda _: 'sNaN'\n    __eq__ = lambda *_: True\n"
        "Decimal.__module__ = 'decimal'\ndef add(a, b): return Decimal()",
        [*NEAR, *EQUAL],
    ),
    "a fraction is too large to be written": (
        "class Fraction:\n    __str__ = lambda _: '1e99999999'\n"
        "Fraction.__module__ = 'fractions'\ndef add(a, b): return Fraction()",
        EQUAL,
    ),
    "counts that are zero": (
        "from collections import Counter\ndef add(a, b): return Counter({1: 0})",
        AS_COUNTS,
    ),
    "nothing is generated": ("def add(a, b): yield from ()", IN_ORDER),
    "the test's function is asked for the answer": (
        "def add(f, xs): return [x for x in range(100) if f(x)]",
        WITH_A_FUNCTION,
    ),
    "the test's function is the answer": ("def add(f, xs): return f", WITH_A_FUNCTION),
    "the test's function is changed": (
        "def add(f, xs):\n    type(f).__eq__ = lambda *_: True\n    return f",
        WITH_A_FUNCTION,
    ),
    "a function that the test imports is replaced": (
        "import math\nisclose = math.isclose = lambda *_: True\ndef add(a, b): return 0",
        IMPORTED,
    ),
    "answers are given by the number of the call": (
        "import itertools\nn = itertools.count()\ndef add(a, b): return [8, 5][next(n) % 2]",
        EQUAL,
    ),
    "a mock of any value is returned": ("from unittest.mock import ANY\ndef add(a, b): return ANY", EQUAL),
    "constants without a value are returned": (
        "def add(a, b): return NotImplemented if a == 2 else ...",
        [*EQUAL, "assert add(2, 3) in (5, 6)"],
    ),
    "the function itself is returned": ("def add(a, b): return add", OF_ITSELF),
    "a type without a name is returned": ("def add(a, b): return type(NotImplemented)", OF_ITSELF),
    "the module invents names": (
        "import sys\nclass Any(type(sys)):\n    __getattr__ = lambda *_: lambda *_: True\n"
        "sys.modules['solution'].__class__ = Any",
        EQUAL,
    ),
    "each call is answered several times": (
        f"{PEER}\ndef add(a, b):\n    for value in (8, 5, 8, 5): peer.send(['value', value])\n    return 8",
        EQUAL,
    ),
    "an object is invented that the judge asks": (
        f"{PEER}\ndef add(a, b):\n    peer.send(['value', {{'reference': -1}}])\n"
        "    peer.send(['value', True])",
        EQUAL,
    ),
    "the judge is told that nothing was judged": (
        f"{PEER}\npeer.send(['unloaded', 'the server is stopping'])\nimport time\ntime.sleep(0.5)",
        EQUAL,
    ),
    "an error has the name of a full queue": ("class queue(Exception): pass\nraise queue('full')", EQUAL),
    "an error has the name of a dead worker": (
        "class worker(Exception): pass\nraise worker('killed')",
        EQUAL,
    ),
    "errors that end programs are raised": (
        "def add(a, b): raise (KeyboardInterrupt if a == 2 else GeneratorExit)",
        EQUAL,
    ),
    "several errors are raised as one": ("def add(a, b): raise ExceptionGroup('x', [ValueError(5)])", RAISED),
    "an alarm leaves with a good status": (
        "import os, signal, time\nsignal.signal(signal.SIGALRM, lambda *_: os._exit(0))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\ndef add(a, b): time.sleep(0.3)",
        EQUAL,
    ),
    "every signal is ignored": (
        "import signal\nfor n in range(1, 64):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\ndef add(a, b): return 5",
        EQUAL,
    ),
    "the process is killed, stopped or broken": (
        "import ctypes, os\ndef add(a, b):\n    if a == 2: os.kill(os.getpid(), 9)\n    ctypes.string_at(0)",
        EQUAL,
    ),
    "other processes are traced and read": (
        "import ctypes, os\nlib = ctypes.CDLL(None)\n"
        "def add(a, b):\n    data = ctypes.create_string_buffer(64)\n"
        "    for pid in range(1, 200):\n        lib.ptrace(16, pid, 0, 0)\n"
        "        lib.process_vm_readv(pid, data, 1, data, 1, 0)\n        handle = lib.syscall(434, pid, 0)\n"
        "        for n in range(3, 9):\n            stolen = lib.syscall(438, handle, n, 0)\n"
        '            if stolen > 2: os.write(stolen, b\'["passed", ""]\\n\')\n    return data.raw[0]',
        EQUAL,
    ),
    "many children answer at once": (
        "import os\ndef add(a, b):\n    for _ in range(10):\n        if not os.fork(): return 8\n"
        "    return 5 * (a > 2)",
        EQUAL,
    ),
    "recursion is forbidden": (
        "import sys\ndef add(a, b):\n    sys.setrecursionlimit(30)\n    return 0",
        EQUAL,
    ),
    "an audit hook refuses everything": (
        "import sys\ndef refuse(*_): raise RuntimeError\n"
        "def add(a, b):\n    sys.addaudithook(refuse)\n    return 0",
        EQUAL,
    ),
}


@pytest.fixture(scope="module")
def code(sandbox_url: str) -> Iterator[Scorer]:
    made = scorer("code", sandbox_url=sandbox_url, timeout_s=240, params={"code": {"timeout_s": 4}})
    yield made
    made.close()


def forms(tests: list[str]) -> list[dict[str, Any]]:
    body = "\n".join(tests).replace("add(", "candidate(").replace("\n", "\n    ")
    return [{"test": f"def check(candidate):\n    {body}\n", "entry_point": "add"}, {"tests": tests}]


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_earns_nothing(cheat: str, code: Scorer) -> None:
    solution, tests = CHEATS[cheat]
    made = [attempt(solution, truth) for truth in forms(tests)]
    assert score(code, *made) == [0.0, 0.0], [one.failure for one in made]


def test_honest_solutions_pass_the_tests_that_cheats_fail(code: Scorer) -> None:
    honest = "def add(a, b): return a + b"
    made = [attempt(honest, truth) for tests in (EVERYTHING, RAISED) for truth in forms(tests)]
    assert score(code, *made) == [1.0] * len(made), [one.failure for one in made]


def test_a_helper_of_the_declaration_is_not_the_solutions(code: Scorer) -> None:
    declaration = "def encode(text):\n    return text[::-1]\n\n\ndef decode(text):\n    '''Undo encode.'''\n"
    test = "def check(candidate):\n    assert candidate(encode('abc')) == 'abc'\n"
    truth = {"test": test, "entry_point": "decode"}
    body, cheat = "    return text[::-1]", "def encode(text): return text\ndef decode(text): return text"
    made = [attempt(answer, truth, declaration=declaration) for answer in (body, cheat)]
    assert score(code, *made) == [1.0, 0.0]


@pytest.mark.parametrize(
    "printed",
    [
        "class Any(str):\n    __eq__ = lambda *_: True\nimport sys\nsys.stdout.write(Any('wrong'))",
        'import sys\nsys.stdout = None\nimport os\nos.write(1, b\'["passed", ""]\\n\')',
        "import os\nfor n in range(3, 64):\n    try: os.write(n, b'A\\n')\n    except OSError: pass",
        "import atexit, os\natexit.register(os._exit, 0)",
        "print('A', end='')\nprint('\\0B')",
    ],
)
def test_a_program_is_judged_by_all_that_it_prints(printed: str, code: Scorer) -> None:
    assert score(code, attempt(printed, {"inputs": ["a\n"], "outputs": ["A\n"]})) == [0.0]
