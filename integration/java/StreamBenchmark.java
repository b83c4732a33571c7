package org.apache.iceberg.encryption;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.Random;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.io.SeekableInputStream;

/** Iceberg Java's side of `make bench`: its streams on memory that was allocated before the clock starts. */
class StreamBenchmark {
  private static final byte[] KEY = new byte[16];
  private static final byte[] AAD_PREFIX = new byte[16];
  private static byte[] plain = new byte[0];
  private static byte[] encrypted;

  private StreamBenchmark() {}

  static void run(JsonNode command, ObjectNode answer) throws IOException {
    prepare(command.get("length").asInt());
    long start = System.nanoTime();
    switch (command.get("what").asText()) {
      case "write" -> write(new Nowhere());
      case "read" -> readAll();
      case "random" -> readAtRandom(command.get("reads").asInt(), command.get("size").asInt());
      default -> throw new IllegalArgumentException("Unknown benchmark: " + command);
    }
    answer.put("seconds", (System.nanoTime() - start) / 1e9);
  }

  private static void prepare(int length) throws IOException {
    if (plain.length != length) {
      plain = new byte[length];
      new Random(1).nextBytes(plain);
      encrypted = new byte[length + (length / Ciphers.PLAIN_BLOCK_SIZE + 1) * 28 + 8];
      write(new Sink());
    }
  }

  private static void write(PositionOutputStream sink) throws IOException {
    try (AesGcmOutputStream stream = new AesGcmOutputStream(sink, KEY, AAD_PREFIX)) {
      for (int at = 0; at < plain.length; at += Ciphers.PLAIN_BLOCK_SIZE) {
        stream.write(plain, at, Math.min(Ciphers.PLAIN_BLOCK_SIZE, plain.length - at));
      }
    }
  }

  private static void readAll() throws IOException {
    try (SeekableInputStream stream = open()) {
      int at = 0;
      for (int count = 0; count >= 0; at += count) {
        count = stream.read(plain, at, plain.length - at);
        if (at + Math.max(count, 0) == plain.length) {
          return;
        }
      }
    }
  }

  private static void readAtRandom(int reads, int size) throws IOException {
    byte[] buffer = new byte[size];
    Random random = new Random(2);
    try (SeekableInputStream stream = open()) {
      for (int i = 0; i < reads; i++) {
        stream.seek(random.nextInt(plain.length - size));
        stream.readNBytes(buffer, 0, size);
      }
    }
  }

  private static SeekableInputStream open() {
    long full = plain.length / Ciphers.PLAIN_BLOCK_SIZE;
    long blocks = plain.length % Ciphers.PLAIN_BLOCK_SIZE == 0 ? full : full + 1;
    return new AesGcmInputStream(new Source(), plain.length + blocks * 28 + 8, KEY, AAD_PREFIX);
  }

  /** A sink that costs nothing. */
  private static class Nowhere extends PositionOutputStream {
    protected int position = 0;

    @Override
    public long getPos() {
      return position;
    }

    @Override
    public void write(int b) {
      position++;
    }

    @Override
    public void write(byte[] bytes, int offset, int length) {
      position += length;
    }
  }

  private static class Sink extends Nowhere {
    @Override
    public void write(int b) {
      encrypted[position] = (byte) b;
      super.write(b);
    }

    @Override
    public void write(byte[] bytes, int offset, int length) {
      System.arraycopy(bytes, offset, encrypted, position, length);
      super.write(bytes, offset, length);
    }
  }

  private static class Source extends SeekableInputStream {
    private int position = 0;

    @Override
    public long getPos() {
      return position;
    }

    @Override
    public void seek(long newPosition) {
      position = (int) newPosition;
    }

    @Override
    public int read() {
      return encrypted[position++] & 0xFF;
    }

    @Override
    public int read(byte[] bytes, int offset, int length) {
      System.arraycopy(encrypted, position, bytes, offset, length);
      position += length;
      return length;
    }
  }
}
