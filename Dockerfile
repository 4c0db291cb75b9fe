# The image of rolldrop: one static program on an empty base, the roots of the public certificate
# authorities, and the licences and the list of what is linked into the program.
#
#   docker build -t registry.example.org/rolldrop:0.1.0 .
#   docker buildx build --platform linux/amd64,linux/arm64 -t registry.example.org/rolldrop:0.1.0 --push .
#
# The compiler runs on the machine that builds, for whatever platform is asked for: nothing is emulated.
# docs/image.md says how this is tested, and how large the result is.

FROM --platform=$BUILDPLATFORM docker.io/library/rust:1.95.0-slim-bookworm AS build

# Set by the builder: amd64 or arm64.
ARG TARGETARCH

# ring has some C, for which clang is a compiler to any platform; of the C library it takes musl's headers.
RUN set -eu; \
    dpkg --add-architecture "$TARGETARCH"; \
    apt-get update -qq; \
    apt-get install -y -qq --no-install-recommends ca-certificates clang python3 "musl-dev:$TARGETARCH"; \
    rm -rf /var/lib/apt/lists/*; \
    case "$TARGETARCH" in \
      amd64) machine=x86_64 ;; \
      arm64) machine=aarch64 ;; \
      *) echo "no build for TARGETARCH=$TARGETARCH" >&2; exit 1 ;; \
    esac; \
    rustup target add "$machine-unknown-linux-musl"; \
    echo "$machine" >/machine

# Puts the list of packages into the program, where `cargo audit bin` and scanners of images find it.
ARG AUDITABLE=0.7.7
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    cargo install --quiet --locked --version "$AUDITABLE" cargo-auditable

WORKDIR /src
COPY scripts/components.py scripts/components.py
COPY Cargo.toml Cargo.lock build.rs ./
COPY benches benches
COPY crates crates
COPY docs/expect.md docs/findings.md docs/outcomes.md docs/
COPY scenarios scenarios
COPY src src
# The manifest names the tests, which are not built.
COPY tests/it/main.rs tests/it/

# What cargo keeps is in caches: a change of the source leaves the dependencies as they are built.
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    set -eu; \
    machine=$(cat /machine); \
    target=$machine-unknown-linux-musl; \
    name=$(echo "$target" | tr '[:lower:]-' '[:upper:]_'); \
    export "CARGO_TARGET_${name}_LINKER=rust-lld" \
      "CARGO_TARGET_${name}_RUSTFLAGS=-Clink-self-contained=yes -Cstrip=symbols" \
      "CC_$(echo "$target" | tr - _)=clang" \
      "CFLAGS_$(echo "$target" | tr - _)=-nostdlibinc -isystem /usr/include/$machine-linux-musl"; \
    cargo auditable build --profile dist --locked --bin rolldrop --target "$target"; \
    cp "target/$target/dist/rolldrop" /rolldrop; \
    mkdir -p /doc; \
    python3 scripts/components.py notices "$target" >/doc/NOTICES; \
    python3 scripts/components.py sbom "$target" >/doc/rolldrop.cdx.json

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /doc /usr/share/doc/rolldrop
COPY LICENSE /usr/share/doc/rolldrop/LICENSE
COPY --from=build /rolldrop /rolldrop
USER 65532:65532
ENTRYPOINT ["/rolldrop"]
