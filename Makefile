# The two commands of the README are `make demo` and `make test`; each sets up all it needs by itself.
#
#   make demo        a virtual GPU comes up, classifies real digits, and is checked against NumPy
#   make dev         the virtual environment with all that development and tests need
#   make test        the fast test suite, on all cores
#   make test-slow   the slow tests, and properties with examples drawn from a new seed
#   make test-masks  the tests of generated host code, without some of the processor's instruction sets
#   make mutants     plant single bugs and count which of them the tests find
#   make faults      plant every fault in the virtual devices and check how each ends; SEED=N
#   make soak        the same at random, on devices at work in threads; MINUTES=30, SEED=N
#   make test-kernel the transports under a real kernel, in a QEMU guest (downloads 150 MB once)
#   make test-foreign  drivers and compilers of others on the virtual devices (installs them from PyPI once)
#   make test-adreno  the whole operation corpus on four virtual Adreno GPUs (15 minutes of processor time)
#   make test-turnip  Mesa's Vulkan driver for Adreno on the virtual GPUs (builds it once, 5 minutes)
#   make hw          the suite on every real GPU of this machine; writes docs/hardware (WHEELS=DIR: no network)
#   make check       lint, types, layers, file sizes, what STYLE promises, generated files untouched
#   make bench       measure the figures; writes build/bench.json
#   make regen       fetch the vendors' headers and generate the tables again (must leave no diff)
#   make docs        the reference of the programming interface, from docstrings, into build/docs
#   make page        compile the script of ugpud's page from TypeScript (needs npm)
#   make golden      rewrite the golden files; read the diff before you commit it
#   make clean       remove the virtual environment and build products

VENV := .venv
PYTHON := $(VENV)/bin/python
SETUP := tools/house/setup.sh $(VENV)
ALL := demo dev firmware regen nv adreno?

.PHONY: demo dev test test-slow test-masks mutants faults soak test-kernel test-foreign test-adreno test-turnip hw check bench docs regen golden page clean

dev:
	@$(SETUP) $(ALL)

demo:
	@$(SETUP) demo
	@$(PYTHON) -m tools.cli demo

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

mutants:
	@$(SETUP) $(ALL)
	$(PYTHON) -m tests.mutants

faults:
	@$(SETUP) $(ALL)
	$(PYTHON) -m tests.campaign $(if $(SEED),--seed $(SEED))

soak:
	@$(SETUP) $(ALL)
	$(PYTHON) -m tests.campaign.soak --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED))

test-kernel:
	@$(SETUP) demo dev firmware
	$(PYTHON) -m tests.kernel

test-foreign:
	@$(SETUP) dev
	$(PYTHON) -m tests.foreign

test-adreno:
	@$(SETUP) $(ALL)
	$(PYTHON) -m tests.support.adreno_corpus

test-turnip:
	@$(SETUP) dev
	$(PYTHON) -m tests.turnip

# From a folder of wheels (docs/hardware.md says how to fill one) pip asks no index.
hw: export PIP_FIND_LINKS := $(if $(WHEELS),$(abspath $(WHEELS)))
hw: export PIP_NO_INDEX := $(if $(WHEELS),1)
hw:
	@$(SETUP) hw nv
	$(PYTHON) -m tests.hw

check:
	@$(SETUP) $(ALL)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy am compiler hcq lab nv qcom tools ugpu usbgpu
	$(PYTHON) -m tools.house.layers
	$(PYTHON) -m tools.house.sizes
	$(PYTHON) -m tools.house.promises
	$(PYTHON) -m tools.clang2py --check

bench:
	@$(SETUP) demo dev bench
	$(PYTHON) -m tests.bench

# The script of ugpud's page, from TypeScript; its first line names the source that it was made from.
page: TYPESCRIPT := typescript@7.0.2
page: PAGE := tools/page/static/page.js
page:
	npm install --silent --no-audit --no-fund --prefix build/npm $(TYPESCRIPT)
	build/npm/node_modules/.bin/tsc -p tools/page/web
	sed -i "1i // Made from page.ts by make page; sha256 $$(sha256sum tools/page/web/page.ts | cut -c1-64)" $(PAGE)

regen:
	@$(SETUP) dev regen
	$(PYTHON) -m tools.clang2py
	git status --short -- am/regs hcq/uapi nv/abi/tables qcom/regs/tables
	test -z "$$(git status --porcelain -- am/regs hcq/uapi nv/abi/tables qcom/regs/tables)"

# Modules of which users call functions; what is beneath them is read in the sources.
REFERENCE := ugpu ugpu.ir hcq hcq.errors hcq.device hcq.driver hcq.buffer hcq.queue hcq.program hcq.graph \
	hcq.memory hcq.target hcq.telemetry hcq.timeline compiler compiler.tensor compiler.dtype \
	compiler.front.jit compiler.front.function

docs:
	@$(SETUP) demo docs
	$(PYTHON) -m pdoc --docformat restructuredtext -o build/docs $(REFERENCE)

golden:
	@$(SETUP) demo dev
	$(PYTHON) -m pytest -q -m golden --update-golden tests
	git diff --stat -- tests/golden

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
