//! What a test needs and this machine may lack.

/// Fails with one line that says what is missing. A test that needs what many machines lack is also
/// `#[ignore = "needs …"]`: cargo counts it as ignored, and scripts/test runs it by
/// `--ignored NAME` where it can.
#[macro_export]
macro_rules! require {
    ($there:expr, $($missing:tt)+) => {
        assert!($there, "not run: this needs {}", format_args!($($missing)+))
    };
}
