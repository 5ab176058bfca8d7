pub mod capabilities;
pub mod limits;
pub mod memfd;
pub mod pidfd;
pub mod pidfd_getfd;
pub mod program;
pub mod runtime_users;
pub mod signals;
