import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;

/** A Hive metastore on an empty Derby database. Its lock tables must exist before it serves. */
public class Metastore {
  public static void main(String[] arguments) throws Throwable {
    TxnDbUtil.setConfValues(new HiveConf());
    TxnDbUtil.prepDb(new HiveConf());
    HiveMetaStore.main(arguments);
  }
}
