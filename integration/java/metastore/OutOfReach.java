import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * An object storage for which the metastore has no client. It asks for the folders of databases and tables, which such
 * storages do not need; files are for the engines, which have clients of their own.
 */
public class OutOfReach extends FileSystem {
  private URI uri;

  @Override
  public void initialize(URI name, Configuration configuration) throws IOException {
    super.initialize(name, configuration);
    uri = URI.create(name.getScheme() + "://" + name.getAuthority());
  }

  @Override
  public URI getUri() {
    return uri;
  }

  @Override
  public FileStatus getFileStatus(Path path) {
    return new FileStatus(0, true, 1, 0, 0, path);
  }

  @Override
  public boolean mkdirs(Path path, FsPermission permission) {
    return true;
  }

  @Override
  public FileStatus[] listStatus(Path path) {
    return new FileStatus[0];
  }

  @Override
  public Path getWorkingDirectory() {
    return new Path(uri.toString(), "/");
  }

  @Override
  public void setWorkingDirectory(Path path) {}

  @Override
  public FSDataInputStream open(Path path, int size) throws IOException {
    throw outOfReach(path);
  }

  @Override
  public FSDataOutputStream create(
      Path path, FsPermission permission, boolean overwrite, int size, short copies, long block, Progressable progress)
      throws IOException {
    throw outOfReach(path);
  }

  @Override
  public FSDataOutputStream append(Path path, int size, Progressable progress) throws IOException {
    throw outOfReach(path);
  }

  @Override
  public boolean rename(Path from, Path to) throws IOException {
    throw outOfReach(from);
  }

  @Override
  public boolean delete(Path path, boolean recursive) throws IOException {
    throw outOfReach(path);
  }

  private static IOException outOfReach(Path path) {
    return new IOException("the metastore has no client to reach " + path);
  }
}
