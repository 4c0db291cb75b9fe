//! Kubernetes manifests as people write them: YAML or JSON, several documents or a List.
//!
//! They are read as kubectl reads them. Every error names file, line and key, and edits keep everything else in the
//! text: comments, order, style and line ends. Pure.

mod edit;
mod flow;
mod object;
mod problem;
mod repaired;
mod scalar;
#[cfg(test)]
mod tests;
mod text;
mod tree;

pub use object::{Change, Edit, Object, escaped};
pub use problem::ManifestError;
pub use text::{Edited, Manifests};
