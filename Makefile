# weir: `make` builds, `make demo` shows, `make check` checks a change, `make test` tests, `make bench` measures.
# Targets that need packages install what is missing, or print the command when not root.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build
.PHONY: build setup demo check test test-build test-rust simulate test-real test-release fuzz explore miri bench man docs lint fmt clippy rustdoc tidy deny aarch64 install dist clean

CARGO ?= cargo
PREFIX ?= /usr/local
export PATH := $(PATH):$(HOME)/.cargo/bin

# The client library is built by itself: cargo merges the features of a crate over all packages
# of one build, and the library's rustix must do without std (std's files go through libc's
# symbols, which the library itself defines).
PRELOAD := weir-preload

# The parts of `make test`, in their order, and what they build.
PARTS := setup fmt tidy clippy rustdoc deny test-build test-rust simulate fuzz explore miri aarch64 test-real build test-release
TESTED := --workspace --exclude $(PRELOAD) --exclude weir-tests
BUILT := $(abspath $(or $(CARGO_TARGET_DIR),target))/debug
RELEASE := $(dir $(BUILT))release
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
DIST := weir-$(VERSION)-$(shell uname -m)
ifdef CI
export CARGO_INCREMENTAL := 0
endif

build:
	$(CARGO) build --release --package weir-cli --package weir-capi --package weir-mpiio --package weir-pnetcdf --package weir-hdf5
	$(CARGO) build --release --package $(PRELOAD)
	@tools/plugin-dir $(RELEASE)

setup:
	@tools/setup

demo: setup build
	demo/run

# The quick answer about the changes since main; prints what it leaves out.
check:
	$(CARGO) xtask check

# Quick checks first; programs that use weir last. The time that each took is printed at the end.
test:
	@MAKE='$(MAKE)' tools/parts $(PARTS)

# All in one profile, and programs as part of the same build: for another choice of packages cargo
# merges other features, and compiles them again.
test-build:
	$(CARGO) test $(TESTED) --no-run
	$(CARGO) build --package $(PRELOAD)
	$(CARGO) build --package weir-capi --package weir-mpiio --package weir-pnetcdf --package weir-hdf5
	@tools/plugin-dir $(BUILT)
	$(CARGO) test --package weir-tests --no-run

test-rust: test-build
	$(CARGO) test $(TESTED)

# Always from the first seed on, so that what fails is what was changed.
simulate: test-build
	$(CARGO) xtask simulate --program $(BUILT)/weir-sim --minutes 1
	$(CARGO) xtask simulate --program $(BUILT)/weir-sim --minutes 1 --mild
	$(CARGO) xtask simulate --program $(BUILT)/weir-sim --seeds 1000 --cuts

# What one node does, four servers do.
test-real: export WEIR_TEST_BINARY := $(BUILT)/weir
test-real: test-build
	tools/adios2 --install
	$(CARGO) test --package weir-tests
	WEIR_TEST_SERVERS=4 $(CARGO) test --package weir-tests --test real --test semantics

# What is installed is another build of the same: that programs run on it, and that its hot path
# does not call the kernel.
test-release: export WEIR_TEST_BINARY := $(RELEASE)/weir
test-release: build test-build
	$(CARGO) test --package weir-tests --test real -- shell::
	$(CARGO) test --package weir-tests --test real -- hotpath::

# In CI every decoder is fuzzed for a minute in all; elsewhere `tools/fuzz` does it.
fuzz:
ifdef CI
	@tools/fuzz --install --seconds 60
else
	@echo "fuzz: NOTHING WAS FUZZED: CI is not set (CI=1 make test, or tools/fuzz, does it)" >&2
endif

# The records that processes share, in all orders of their accesses that the memory model permits:
# weir-core with loom's atomics. About 20 s once it is built.
explore:
	$(CARGO) test --package weir-core --features explore --test explore --no-run
	timeout 90 $(CARGO) test --package weir-core --features explore --test explore

# In CI it is installed; elsewhere it runs if it is there.
miri:
	@tools/miri $(if $(CI),--install)

# The second instance has hardly any memory: what it is given goes to the file tier, and with
# fsync to the device, whose own rate is measured beside it.
bench: setup build
	target/release/weir run -- target/release/weir bench --suite --verify \
	    --target weir=/weir --target tmpfs=/dev/shm --target disk=$${TMPDIR:-/tmp} $(BENCH)
	target/release/weir run --memory 1M -- target/release/weir bench --ops write --fsync --verify \
	    --transfer 1m --block 128m --pattern segmented --repeat 5 --no-limits \
	    --target weir-file=/weir --target disk=$${TMPDIR:-/tmp} --device $${TMPDIR:-/tmp}

man: build
	$(RELEASE)/weir man build/man
	@echo "man pages are in build/man"

# docs/CONFIGURATION.md, from the declaration of the settings.
docs:
	WEIR_TEST_BLESS=1 $(CARGO) test --quiet --package weir-config --lib docs

lint: fmt clippy rustdoc tidy aarch64
	@tools/deny --install

fmt:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check

clippy:
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --package weir-core --features explore --test explore -- -D warnings
	$(CARGO) check --quiet --manifest-path fuzz/Cargo.toml --target-dir build/fuzz --all-targets

# Links of documentation comments lead to items that exist.
rustdoc: export RUSTDOCFLAGS := -D rustdoc::broken_intra_doc_links -A rustdoc::private_intra_doc_links
rustdoc:
	$(CARGO) doc --quiet --workspace --no-deps --document-private-items

tidy:
	$(CARGO) xtask tidy

# In CI it is installed; elsewhere it runs if it is there.
deny:
	@tools/deny $(if $(CI),--install)

aarch64:
	tools/check-aarch64

# Needs no root where PREFIX is the user's, and no network but cargo's. The tree may be moved: weir
# finds its library beside itself, and weir.pc says where it lies.
install: build man
	install -D -m 755 $(RELEASE)/weir $(DESTDIR)$(PREFIX)/bin/weir
	install -D -m 755 $(RELEASE)/libweir_preload.so $(DESTDIR)$(PREFIX)/lib/weir/libweir_preload.so
	install -D -m 755 $(RELEASE)/libweir_mpiio.so $(DESTDIR)$(PREFIX)/lib/weir/libweir_mpiio.so
	install -D -m 755 $(RELEASE)/libweir_pnetcdf.so $(DESTDIR)$(PREFIX)/lib/weir/libweir_pnetcdf.so
	install -D -m 755 $(RELEASE)/libweir_hdf5.so $(DESTDIR)$(PREFIX)/lib/weir/hdf5/libweir_hdf5.so
	install -D -m 755 $(RELEASE)/libweir.so $(DESTDIR)$(PREFIX)/lib/libweir.so.1
	ln -sf libweir.so.1 $(DESTDIR)$(PREFIX)/lib/libweir.so
	install -D -m 644 crates/weir-capi/include/weir.h $(DESTDIR)$(PREFIX)/include/weir.h
	install -D -m 644 crates/weir-capi/weir.h.3 $(DESTDIR)$(PREFIX)/share/man/man3/weir.h.3
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed -e 's|@VERSION@|$(VERSION)|' crates/weir-capi/weir.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/weir.pc
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man5
	install -m 644 build/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 build/man/*.5 $(DESTDIR)$(PREFIX)/share/man/man5
	for document in *.md LICENSE-* $$(find docs -name '*.md'); do \
	    install -D -m 644 $$document $(DESTDIR)$(PREFIX)/share/doc/weir/$$document; done

# The installed tree as a tarball, to be unpacked anywhere. It needs the C library of the machine that
# built it, or a later one. Owners, times and order do not depend on the machine.
dist:
	rm -rf build/$(DIST)
	$(MAKE) --no-print-directory install DESTDIR= PREFIX=$(CURDIR)/build/$(DIST)
	cd build/$(DIST) && ln -s share/doc/weir/* .
	tar --create --gzip --directory build --sort=name --owner=0 --group=0 --numeric-owner \
	    --mtime="@$$(git log -1 --format=%ct 2>/dev/null || date +%s)" --file build/$(DIST).tar.gz $(DIST)
	cd build && sha256sum $(DIST).tar.gz > $(DIST).tar.gz.sha256
	@echo "build/$(DIST).tar.gz, and its checksum beside it"

clean:
	$(CARGO) clean
	rm -rf build
