//! Compiles `proto/` in pure Rust, so that no `protoc` is needed on the machine.

use std::error::Error;
use std::path::Path;

use prost::Message as _;

const PROTO: &str = "../../proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    let files = [
        "rankway/v1/kv.proto",
        "rankway/v1/fleet.proto",
        "rankway/v1/affinity.proto",
        "rankway/v1/index.proto",
        "rankway/v1/feed.proto",
        "rankway/v1/dispatch.proto",
        "rankway/v1/status.proto",
        "rankway/store/v1/index.proto",
    ];
    let descriptors = protox::compile(files, [PROTO])?;
    let out = std::env::var_os("OUT_DIR").ok_or("cargo names no folder for what is generated")?;
    std::fs::write(
        Path::new(&out).join("descriptors.bin"),
        descriptors.encode_to_vec(),
    )?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}
