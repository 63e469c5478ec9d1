# The two commands of the README are `make demo` and `make test`; each sets up all it needs by itself.
#
#   make demo        a virtual GPU comes up, classifies real digits, and is checked against NumPy
#   make dev         the virtual environment with all that development and tests need
#   make test        the fast test suite, on all cores
#   make test-slow   the slow tests, and properties with examples drawn from a new seed
#   make test-masks  the tests of generated host code, without some of the processor's instruction sets
#   make test-turn   this commit's part of test-slow, test-masks and test-kernel, as .ci/run runs it; NUMBER=N: of another
#   make test-all    all of test, test-slow, test-masks and test-kernel; before an issue is called done
#   make mutants     plant single bugs and count which of them the tests find
#   make faults      plant every fault in the virtual devices and check how each ends; SEED=N
#   make soak        the same at random, on devices at work in threads; MINUTES=30, SEED=N
#   make test-kernel the transports under a real kernel, in a QEMU guest (downloads 150 MB once)
#   make test-foreign  drivers and compilers of others on the virtual devices (installs them from PyPI once)
#   make test-adreno  the whole operation corpus on four virtual Adreno GPUs (15 minutes of processor time)
#   make test-turnip  Mesa's Vulkan driver for Adreno on the virtual GPUs (builds it once, 5 minutes)
#   make hw          the suite on every real GPU of this machine; writes docs/hardware (WHEELS=DIR: no network)
#   make check       lint, types, layers, file sizes, what STYLE promises, generated files untouched
#   make bench       measure the figures; writes build/bench.json, adds to this machine's history
#   make bench-compare  what the last make bench did worse or better than the median of earlier ones
#   make regen       fetch the vendors' headers and AMD's instruction types, generate the tables again (must leave no diff)
#   make docs        the reference of the programming interface, from docstrings, into build/docs
#   make page        compile the script of ugpud's page from TypeScript (needs npm)
#   make golden      rewrite the golden files; read the diff before you commit it
#   make clean       remove the virtual environment and build products

VENV := .venv
PYTHON := $(VENV)/bin/python
SETUP := tools/house/setup.sh $(VENV)
ALL := demo dev firmware regen nv chat gguf onnx adreno?

.PHONY: demo dev test test-slow test-masks test-turn test-all mutants faults soak test-kernel test-foreign test-adreno test-turnip hw check bench bench-compare docs regen golden page clean

dev:
	@$(SETUP) $(ALL)

demo:
	@$(SETUP) demo
	@$(PYTHON) -m ugpu.tools.cli demo

test:
	@$(SETUP) $(ALL)
	$(PYTHON) -m pytest -q -n auto --dist worksteal -m "not slow and not hardware and not foreign" tests

test-slow:
	@$(SETUP) $(ALL)
	$(PYTHON) -m pytest -q -n auto --dist worksteal -m "slow and not hardware and not foreign" tests
	$(PYTHON) -m tests.seeds

test-masks:
	@$(SETUP) $(ALL)
	$(PYTHON) -m tests.masks

test-turn: export UGPU_TEST_NUMBER := $(or $(NUMBER),$(UGPU_TEST_NUMBER))
test-turn:
	@$(SETUP) $(ALL)
	$(PYTHON) -m tests.shards
	$(PYTHON) -m tests.seeds
	$(PYTHON) -m tests.masks --turn
	$(PYTHON) -m lab.kernel --turn --minutes 8

test-all: test test-slow test-masks test-kernel

mutants:
	@$(SETUP) $(ALL)
	$(PYTHON) -m lab.mutants

faults:
	@$(SETUP) $(ALL)
	$(PYTHON) -m lab.campaign $(if $(SEED),--seed $(SEED))

soak:
	@$(SETUP) $(ALL)
	$(PYTHON) -m lab.campaign.soak --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED))

test-kernel:
	@$(SETUP) demo dev firmware
	$(PYTHON) -m lab.kernel

test-foreign:
	@$(SETUP) dev
	$(PYTHON) -m tests.foreign

test-adreno:
	@$(SETUP) $(ALL)
	$(PYTHON) -m tests.support.adreno.adreno_corpus

test-turnip:
	@$(SETUP) dev
	$(PYTHON) -m lab.turnip

# From a folder of wheels (docs/hardware.md says how to fill one) pip asks no index.
hw: export PIP_FIND_LINKS := $(if $(WHEELS),$(abspath $(WHEELS)))
hw: export PIP_NO_INDEX := $(if $(WHEELS),1)
hw:
	@$(SETUP) hw nv
	$(PYTHON) -m lab.hw

check:
	@$(SETUP) $(ALL)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy ugpu lab/programs lab/sizes lab/threads.py
	$(PYTHON) -m ugpu.tools.house.layers
	$(PYTHON) -m ugpu.tools.house.sizes
	$(PYTHON) -m ugpu.tools.house.promises
	$(PYTHON) -m ugpu.tools.clang2py --check

bench:
	@$(SETUP) demo dev bench
	$(PYTHON) -m lab.bench

bench-compare:
	@$(SETUP) demo dev
	$(PYTHON) -m lab.bench compare

# The scripts of ugpud's page, from TypeScript; the first line of each names the source that it was made from.
page: TYPESCRIPT := typescript@7.0.2
page:
	npm install --silent --no-audit --no-fund --prefix build/npm $(TYPESCRIPT)
	build/npm/node_modules/.bin/tsc -p tools/service/page/web
	for name in $(notdir $(basename $(wildcard tools/service/page/web/*.ts))); do \
	sed -i "1i // Made from $$name.ts by make page; sha256 $$(sha256sum tools/service/page/web/$$name.ts | cut -c1-64)" tools/service/page/static/$$name.js; done

GENERATED := am/regs hcq/uapi nv/abi/tables nv/abi/gsp qcom/regs/tables virtual/amd/isa/targets

regen:
	@$(SETUP) dev regen
	$(PYTHON) -m ugpu.tools.clang2py
	$(PYTHON) -m pip download --quiet --no-deps --dest build/instructions tinygrad==0.14.0
	$(PYTHON) -m zipfile -e build/instructions/tinygrad-0.14.0-py3-none-any.whl build/instructions
	$(PYTHON) -m ugpu.tools.instructions --tinygrad build/instructions
	git status --short -- $(GENERATED)
	test -z "$$(git status --porcelain -- $(GENERATED))"

# Modules of which users call functions; what is beneath them is read in the sources.
# Every module of hcq but those named is left out; a module that is named twice is a warning.
REFERENCE := ugpu ugpu.ir ugpu.hcq ugpu.hcq.errors ugpu.hcq.device.device ugpu.hcq.device.driver \
	ugpu.hcq.work.buffer ugpu.hcq.work.queue ugpu.hcq.work.program ugpu.hcq.work.graph \
	ugpu.hcq.work.timeline ugpu.hcq.state.memory ugpu.hcq.state.target ugpu.hcq.state.telemetry \
	ugpu.compiler ugpu.compiler.tensor ugpu.compiler.dtype ugpu.compiler.front.jit \
	ugpu.compiler.front.function

docs:
	@$(SETUP) demo docs
	$(PYTHON) -m pdoc --docformat google -o build/docs $(REFERENCE)

golden:
	@$(SETUP) demo dev
	$(PYTHON) -m pytest -q -m golden --update-golden tests
	git diff --stat -- tests/golden

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
