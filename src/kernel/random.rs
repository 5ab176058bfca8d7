use anyhow::{Context, Result};
use rustix::rand::{GetRandomFlags, getrandom};

pub fn bits() -> Result<[u8; 16]> {
    let mut bits = [0; 16];
    // Up to 256 bytes come whole, once the kernel has any (getrandom(2)).
    let count = getrandom(&mut bits, GetRandomFlags::empty())
        .context("asking the kernel for random bits")?;
    anyhow::ensure!(count == bits.len(), "the kernel gave {count} random bytes");
    Ok(bits)
}
