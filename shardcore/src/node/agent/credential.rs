//! The node's own credential for the control plane. Scope: per process, on the admin thread.
//! Owns: where it is; the file is read for every use, so a renewed token is used from the next request on.
//! Invariants: the token is never logged or shown.
//! Not here: what it permits (the control plane decides).

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use jsonwebtoken::dangerous;

/// A token file larger than this is not one.
const TOKEN_BYTES_MAX: u64 = 64 << 10;

/// A bearer token or the file that holds one.
pub enum Credential {
    Fixed(String),
    File(PathBuf),
}

impl Credential {
    /// The token to present now.
    ///
    /// # Errors
    /// A file that cannot be read, is too large or is empty.
    pub fn bearer(&self) -> io::Result<String> {
        match self {
            Credential::Fixed(token) => Ok(token.clone()),
            Credential::File(path) => read_token(path),
        }
    }

    /// Seconds since 1970 when the token ends, if it says so. For display only: nothing is verified.
    pub fn expires_at(&self) -> Option<u64> {
        #[derive(serde::Deserialize)]
        struct Expiry {
            exp: u64,
        }
        let token = self.bearer().ok()?;
        dangerous::insecure_decode_claims::<Expiry>(token).ok().map(|claims| claims.exp)
    }
}

fn read_token(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(TOKEN_BYTES_MAX).read_to_string(&mut text)?;
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no token in it"));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewed_token_file_is_used_at_once_and_an_empty_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let credential = Credential::File(path.clone());
        assert!(credential.bearer().is_err());
        std::fs::write(&path, "first\n").unwrap();
        assert_eq!(credential.bearer().unwrap(), "first");
        std::fs::write(&path, "second").unwrap();
        assert_eq!(credential.bearer().unwrap(), "second");
        std::fs::write(&path, " \n").unwrap();
        assert!(credential.bearer().is_err());
    }

    #[test]
    fn the_end_of_a_token_is_read_from_it() {
        // {"alg":"EdDSA"}.{"exp":1900000000}.
        let token = "eyJhbGciOiJFZERTQSJ9.eyJleHAiOjE5MDAwMDAwMDB9.AAAA";
        assert_eq!(Credential::Fixed(token.to_owned()).expires_at(), Some(1_900_000_000));
        assert_eq!(Credential::Fixed("opaque".to_owned()).expires_at(), None);
    }
}
