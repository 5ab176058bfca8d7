//! What the judge needs: releases of NCCL, worlds to run them in, environments to run them with.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod case;
pub mod envs;
pub mod library;
pub mod rules;
pub mod worlds;
