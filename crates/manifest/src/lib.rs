//! Kubernetes manifests as people write them: YAML or JSON, as several documents or a List.
//!
//! Manifests are read as kubectl reads them. Every error names the file, line and key. Edits preserve the rest of the
//! text: comments, order, style and line endings. The crate does no I/O.

mod edit;
mod flow;
mod form;
mod manifest_text;
mod object;
mod problem;
mod repaired;
mod scalar;
mod splice;
#[cfg(test)]
mod tests;
mod tree;

pub use manifest_text::{Edited, Manifests};
pub use object::{EditKind, ManifestEdit, ManifestObject, escaped};
pub use problem::ManifestError;
