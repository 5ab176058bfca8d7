use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

pub struct Program {
    pub runs: bool,
    /// Whether it is the program of this process, by whatever name.
    pub is_own: bool,
}

pub fn at(path: &Path) -> io::Result<Program> {
    let own = std::fs::metadata("/proc/self/exe")?;
    let meta = std::fs::metadata(path)?;
    let runs = meta.is_file() && meta.permissions().mode() & 0o111 != 0;
    Ok(Program { runs, is_own: (meta.dev(), meta.ino()) == (own.dev(), own.ino()) })
}
