//! The only part that touches the machine.
