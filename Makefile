# What a newcomer needs: make run, make test. What CI runs: make check.

GO ?= go
FUZZTIME ?= 20s

.PHONY: run build test check format vet staticcheck tidy generated fuzz vuln cc chromium bind bench bench-quick bench-full bench-steps mtagbench profile

run: build
	bin/mtagd dev

build:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/mtagd ./cmd/mtagd

# The race detector is linked with a C compiler; the browser tag is tested in a browser, DNS verification
# against a real name server. One package after the other: browsers and crash tests want the machine for themselves.
# Without the profile, by which every package would be compiled a second time.
test: cc chromium bind
	CGO_ENABLED=1 $(GO) test -race -pgo=off -p 1 ./...

check: format vet staticcheck tidy generated test

format:
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; }

vet:
	$(GO) vet -pgo=off ./...

staticcheck:
	$(GO) tool staticcheck ./...

tidy:
	$(GO) mod tidy -diff

generated:
	@before=$$(cksum edge/sdk/loader.js); $(GO) generate ./...; \
	test "$$before" = "$$(cksum edge/sdk/loader.js)" || { echo "edge/sdk/loader.js was not what its source makes; it is now."; exit 1; }

# Each fuzz target in turn, for FUZZTIME.
fuzz:
	@set -e; for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "$$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

# mtagd beside the bare ceiling, on loopback: a table and a picture in bench/results. What the figures mean is in
# bench/README.md. About four minutes; bench-quick takes one, bench-full half an hour, at the size of the targets.
bench: build mtagbench
	bin/mtagbench run $(BENCHFLAGS)

bench-quick: build mtagbench
	bin/mtagbench run --out bin/results --events 100000 --merchants 10 --queries 50 --rounds 2 --round 1s --steady 5s $(BENCHFLAGS)

bench-full: build mtagbench
	bin/mtagbench run --events 10000000 --queries 1000 --rounds 5 --round 5s --steady 10m $(BENCHFLAGS)

# Each step in one process, in the form that benchstat compares. ManyHosts and Compress are run by hand: they compare
# choices, and take minutes.
bench-steps:
	$(GO) test -run '^$$' -bench 'Mark|Directory|Record|Resolve|List' -count $(or $(COUNT),6) ./bench

mtagbench:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/mtagbench ./bench/mtagbench

# What the compiler optimises mtagd by: a CPU profile of the server itself under load, to be renewed when the hot path
# has changed much. A stale one costs speed, never correctness.
profile: build mtagbench
	bin/mtagbench profile cmd/mtagd/default.pgo

# Apart from check: it asks the vulnerability database at vuln.go.dev, and check must pass on a machine that
# reaches nothing but a module proxy.
vuln:
	$(GO) run golang.org/x/vuln/cmd/govulncheck@latest ./...

cc:
	@command -v $$($(GO) env CC) >/dev/null || $(call install,gcc libc6-dev,a C compiler for the race detector)

chromium:
	@command -v chromium >/dev/null || $(call install,chromium,Chromium to test the browser tag)

bind:
	@PATH="$$PATH:/usr/sbin" command -v named >/dev/null || $(call install,bind9,the name server BIND to test DNS verification)

# $(call install,PACKAGES,PURPOSE) installs Debian packages where it may, and else says what is missing.
install = { \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(1) >/dev/null; \
	else \
		echo "make test needs $(2): install $(1) (Debian: sudo apt-get install $(1)) and run it again." >&2; \
		exit 1; \
	fi; }
