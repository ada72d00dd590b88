//! Memory of a thread's own, touched by that thread first, so that it lies where the thread runs.

use crate::error::LoadError;

/// `length` elements made by `make`, or an error where the kernel refuses at once. (A kernel that
/// promises more than it has ends the program later.)
///
/// # Errors
/// [`LoadError::Memory`].
pub(crate) fn fill<T>(
    what: &'static str,
    length: usize,
    make: impl FnMut(usize) -> T,
) -> Result<Vec<T>, LoadError> {
    let bytes = length.saturating_mul(size_of::<T>());
    let mut memory = Vec::new();
    memory.try_reserve_exact(length).map_err(|_| LoadError::Memory { what, bytes })?;
    memory.extend((0..length).map(make));
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        let error = fill("a test", usize::MAX / 16, |_| 0_u64).unwrap_err().to_string();
        assert!(error.contains("a test") && error.contains("--size"), "{error}");
        assert_eq!(fill("a test", 3, |index| index).unwrap(), [0, 1, 2]);
    }
}
